#include "worker/trainer/evaluation.h"

#include <algorithm>

namespace slackline::worker {
namespace {

constexpr uint64_t kEvaluationBatch = 16;

// Bytes of the valid UTF-8 character at `begin` (Unicode 15, table 3-7), or 0.
size_t CharacterBytes(const std::string& text, size_t begin) {
  const auto at = [&](size_t i) -> unsigned {
    return begin + i < text.size() ? static_cast<unsigned char>(text[begin + i]) : 0;
  };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  size_t bytes = 0;
  unsigned low = 0x80, high = 0xBF;  // Of the second byte.
  if (lead >= 0xC2 && lead <= 0xDF) {
    bytes = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    bytes = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    bytes = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return 0;
  }
  return bytes;
}

}  // namespace

Result<EvaluationResult> EvaluateModel(Model& model, const BatchBuilder& validation,
                                       uint64_t limit) {
  const uint64_t all = validation.samples();
  const uint64_t count = limit == 0 ? all : std::min(limit, all);
  EvaluationSum sum;
  Batch batch;
  std::vector<SampleId> samples;
  for (uint64_t begin = 0; begin < count; begin += kEvaluationBatch) {
    samples.clear();
    for (uint64_t i = begin; i < std::min(count, begin + kEvaluationBatch); ++i) {
      samples.push_back({0, i * all / count});
    }
    SLACKLINE_RETURN_ERR_IF_ERROR(validation.Fill(samples, batch));
    SLACKLINE_ASSIGN_OR_RETURN(const EvaluationSum part, model.Evaluate(batch));
    sum.loss += part.loss;
    sum.samples += part.samples;
    sum.targets += part.targets;
    sum.correct += part.correct;
  }
  return EvaluationResult{sum.loss / static_cast<double>(sum.samples),
                          static_cast<double>(sum.correct) / static_cast<double>(sum.targets),
                          sum.samples};
}

std::string ToValidUtf8(const std::string& text) {
  std::string valid;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text, i);
    if (bytes == 0) {
      valid.push_back('?');
      ++i;
    } else {
      valid.append(text, i, bytes);
      i += bytes;
    }
  }
  return valid;
}

}  // namespace slackline::worker
