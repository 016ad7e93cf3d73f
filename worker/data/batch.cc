#include "worker/data/batch.h"

#include <string>

#include "common/random.h"

namespace slackline::worker {
namespace {

// Keeps the offsets of passes apart from every other use of the job's seed.
constexpr uint64_t kShiftStream = 0x73686966742D3031;  // "shift-01"

}  // namespace

Result<BatchBuilder> BatchBuilder::Create(const Dataset& data, size_t context, uint64_t seed,
                                          bool shift) {
  uint64_t samples = data.records();
  if (data.shape().kind == DataKind::kText) {
    // The last window of the largest offset, and its last target, must still lie inside:
    // (samples - 1) * context + (context - 1) + context + 1 <= size.
    samples = data.size_bytes() / context;
    samples = samples > 0 ? samples - 1 : 0;
  }
  if (samples == 0) {
    return Err(
        InvalidArgument("too little data for one sample: " + std::to_string(data.size_bytes()) +
                        " bytes for a context of " + std::to_string(context) + " tokens"));
  }
  return BatchBuilder(data, context, seed, shift, samples);
}

Status BatchBuilder::Fill(std::span<const SampleId> samples, Batch& batch) const {
  batch.samples = samples.size();
  batch.tokens.clear();
  batch.pixels.clear();
  batch.targets.clear();
  batch.finished_leases.clear();
  return data_->shape().kind == DataKind::kText ? FillText(samples, batch)
                                                : FillImages(samples, batch);
}

Status BatchBuilder::FillText(std::span<const SampleId> samples, Batch& batch) const {
  batch.positions = context_;
  std::vector<uint8_t> window(context_ + 1);
  for (const SampleId& sample : samples) {
    const uint64_t shift =
        shift_ ? Mix64(seed_ ^ Mix64(kShiftStream ^ Mix64(sample.pass))) % context_ : 0;
    const uint64_t begin = sample.index * context_ + shift;
    data_->Copy(begin, window);
    for (size_t i = 0; i <= context_; ++i) {
      if (window[i] >= data_->shape().vocabulary) {
        return DataLoss("token " + std::to_string(window[i]) + " at byte " +
                        std::to_string(begin + i) + " of the data: expected below " +
                        std::to_string(data_->shape().vocabulary));
      }
    }
    batch.tokens.insert(batch.tokens.end(), window.begin(), window.end() - 1);
    batch.targets.insert(batch.targets.end(), window.begin() + 1, window.end());
  }
  return OkStatus();
}

Status BatchBuilder::FillImages(std::span<const SampleId> samples, Batch& batch) const {
  const DataShape& shape = data_->shape();
  batch.positions = 1;
  std::vector<uint8_t> record(shape.record_bytes);
  const float scale = 1.0f / static_cast<float>(shape.feature_max);
  for (const SampleId& sample : samples) {
    data_->Copy(sample.index * shape.record_bytes, record);
    if (record[0] >= shape.classes) {
      return DataLoss("label " + std::to_string(record[0]) + " of record " +
                      std::to_string(sample.index) + ": expected below " +
                      std::to_string(shape.classes));
    }
    batch.targets.push_back(record[0]);
    for (size_t i = 1; i < record.size(); ++i) {
      batch.pixels.push_back(static_cast<float>(record[i]) * scale);
    }
  }
  return OkStatus();
}

}  // namespace slackline::worker
