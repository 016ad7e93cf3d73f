#include "common/codec/chunk_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/codec/momentum.h"

namespace slackline {
namespace {

constexpr double kWarmupFactor = 0.25;
constexpr size_t kPartAlignBytes = 4;

// What a rule says of codecs of another kind is not for this one: a job has one rule for both ways.
bool Rounds(std::string_view name) { return name == "int8" || name == "int4"; }
bool Selects(std::string_view name) { return name == "topk" || name == "randk"; }

// The fractions of the warm-up, and the last one behind them.
std::vector<double> Fractions(const CodecRule& rule) {
  std::vector<double> fractions;
  if (Selects(rule.name) && rule.warmup_clocks > 0) {
    for (double f = kWarmupFactor; f > rule.fraction; f *= kWarmupFactor) fractions.push_back(f);
  }
  fractions.push_back(rule.fraction);
  return fractions;
}

// Error feedback for a dense codec: the residual becomes the value, then loses what was encoded.
EncodeStats EncodeDense(const Codec& codec, const float* in, size_t count, float in_scale,
                        float loss_scale, float* residual, std::byte* out) {
  size_t non_finite = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = in[i] * in_scale;
    const bool finite = std::isfinite(value);
    non_finite += finite ? 0 : 1;
    residual[i] += finite ? value : 0.0F;
  }
  EncodeStats stats = codec.Encode(residual, count, loss_scale, out);
  stats.non_finite += non_finite;
  codec.DecodeAdd(out, count, -1 / loss_scale, residual);
  return stats;
}

// The first value that is not finite once the loss scale is taken out; `count` if there is none.
size_t FirstNotFinite(const Codec& dense, const std::byte* in, size_t count, float factor) {
  std::array<float, 256> block;  // Of the stack: nothing may be allocated here.
  for (size_t begin = 0; begin < count; begin += block.size()) {
    const size_t size = std::min(block.size(), count - begin);
    dense.Decode(in + dense.EncodedBytes(begin), size, factor, block.data());
    for (size_t i = 0; i < size; ++i) {
      if (!std::isfinite(block[i])) return begin + i;
    }
  }
  return count;
}

}  // namespace

Result<CodecPlan> CodecPlan::Create(const CodecRule& rule) {
  CodecPlan plan;
  plan.min_elements_ = rule.min_elements;
  plan.dense_ = FindCodec(rule.name);
  if (plan.dense_ != nullptr) return plan;
  const std::string_view coded = ResidualCodecNames();
  const bool known =
      !rule.name.empty() &&
      (", " + std::string(coded) + ", ").find(", " + rule.name + ", ") != std::string::npos;
  if (!known) {
    return Err(InvalidArgument("codec '" + rule.name + "': expected one of " +
                               std::string(CodecNames()) + ", " + std::string(coded)));
  }
  for (const double fraction : Fractions(rule)) {
    SLACKLINE_ASSIGN_OR_RETURN(
        std::unique_ptr<const ResidualCodec> codec,
        MakeResidualCodec({.name = rule.name,
                           .block = Selects(rule.name) ? 0 : rule.block,
                           .fraction = fraction,
                           .stochastic = rule.stochastic && Rounds(rule.name),
                           .int8_values = rule.int8_values && Selects(rule.name)}));
    plan.stages_.push_back(std::move(codec));
  }
  const auto warmups = static_cast<Clock>(plan.stages_.size() - 1);
  if (warmups > 0) plan.stage_clocks_ = std::max<Clock>(rule.warmup_clocks / warmups, 1);
  return plan;
}

size_t CodecPlan::StageOf(Clock clock) const {
  if (stage_clocks_ == 0) return 0;
  return std::min(static_cast<size_t>(std::max<Clock>(clock, 0) / stage_clocks_),
                  stages_.size() - 1);
}

ChunkCodec::ChunkCodec(const CodecPlan& plan, const std::vector<TensorPart>& parts) : plan_(&plan) {
  const Codec* const fp16 = FindCodec(CodecId::kFp16);
  for (const TensorPart& part : parts) {
    const Codec* dense = plan.dense() != nullptr              ? plan.dense()
                         : plan.IsSmall(part.tensor_elements) ? fp16
                                                              : nullptr;
    if (dense != nullptr && !parts_.empty() && parts_.back().dense == dense) {
      parts_.back().count += part.count;
    } else {
      parts_.push_back({count_, part.count, dense});
    }
    count_ += part.count;
  }
  for (const Part& part : parts_) {
    id_ = CodecOf(part, 0).id();
    if (part.dense == nullptr) break;  // The number of a chunk in which anything is coded.
  }
  for (size_t stage = 0; stage < plan.stage_count(); ++stage) {
    size_t bytes = 0;
    for (const Part& part : parts_) bytes += PartBytes(part, stage);
    bytes_.push_back(bytes);
  }
}

const Codec& ChunkCodec::CodecOf(const Part& part, size_t stage) const {
  return part.dense != nullptr ? *part.dense : plan_->coded(stage);
}

// A part that is alone is not padded: its payload is its codec's and nothing else.
size_t ChunkCodec::PartBytes(const Part& part, size_t stage) const {
  const size_t bytes = CodecOf(part, stage).EncodedBytes(part.count);
  if (parts_.size() == 1) return bytes;
  return (bytes + kPartAlignBytes - 1) / kPartAlignBytes * kPartAlignBytes;
}

size_t ChunkCodec::MaxEncodedBytes() const {
  return bytes_.empty() ? 0 : *std::max_element(bytes_.begin(), bytes_.end());
}

template <typename Visit>
void ChunkCodec::ForEach(Clock clock, Visit visit) const {
  const size_t stage = plan_->StageOf(clock);
  size_t offset = 0;
  for (const Part& part : parts_) {
    if (!visit(part, CodecOf(part, stage), offset)) return;
    offset += PartBytes(part, stage);
  }
}

EncodeStats ChunkCodec::Encode(const float* in, float loss_scale, EncodeIdentity identity,
                               float* residual, std::byte* out) const {
  return EncodeParts(in, 1 / loss_scale, loss_scale, identity, residual, nullptr, out);
}

EncodeStats ChunkCodec::EncodeWithMomentum(const float* in, float loss_scale, float momentum,
                                           const EncodeIdentity& identity, float* residual,
                                           float* velocity, std::byte* out) const {
  EncodeStats stats = UpdateVelocity(in, count_, 1 / loss_scale, momentum, velocity);
  stats.saturated +=
      EncodeParts(velocity, 1, loss_scale, identity, residual, velocity, out).saturated;
  return stats;
}

EncodeStats ChunkCodec::EncodeParts(const float* in, float in_scale, float loss_scale,
                                    EncodeIdentity identity, float* residual, float* velocity,
                                    std::byte* out) const {
  EncodeStats stats;
  const size_t stage = plan_->StageOf(identity.clock);
  ForEach(identity.clock, [&](const Part& part, const Codec& codec, size_t offset) {
    const float* const from = in + part.offset;
    float* const kept = residual == nullptr ? nullptr : residual + part.offset;
    EncodeStats part_stats;
    if (part.dense == nullptr) {
      // A coded part belongs to a plan with residual; encoding without one drops for good.
      const auto& residual_codec = static_cast<const ResidualCodec&>(codec);
      part_stats = residual_codec.EncodeResidual(from, part.count, in_scale, kept, kept, identity,
                                                 out + offset);
      if (velocity != nullptr) {
        residual_codec.ClearSent(out + offset, part.count, velocity + part.offset);
      }
    } else if (kept == nullptr) {
      part_stats = codec.Encode(from, part.count, 1, out + offset);
    } else {
      part_stats = EncodeDense(codec, from, part.count, in_scale, loss_scale, kept, out + offset);
    }
    stats.saturated += part_stats.saturated;
    stats.non_finite += part_stats.non_finite;
    const size_t used = codec.EncodedBytes(part.count);
    std::memset(out + offset + used, 0, PartBytes(part, stage) - used);
    ++identity.part;
    return true;
  });
  return stats;
}

void ChunkCodec::TakeBack(const std::byte* payload, float loss_scale, Clock clock,
                          float* residual) const {
  DecodeAdd(payload, loss_scale, clock, residual);
}

PayloadFault ChunkCodec::Validate(ConstBytes in, float loss_scale, Clock clock) const {
  using Kind = PayloadFault::Kind;
  PayloadFault fault;
  if (in.size() != EncodedBytes(clock)) {
    return {Kind::kMalformed, 0,
            "payload has " + std::to_string(in.size()) + " bytes, expected " +
                std::to_string(EncodedBytes(clock))};
  }
  ForEach(clock, [&](const Part& part, const Codec& codec, size_t offset) {
    const size_t bytes = codec.EncodedBytes(part.count);
    const ConstBytes own = in.subspan(offset, bytes);
    if (const Status status = codec.Validate(own, part.count); !status.ok()) {
      fault = {Kind::kMalformed, part.offset, status.message()};
    }
    // A dense payload of the right size can only hold wrong values; a loss scale of 1 or more only
    // makes them smaller.
    if (part.dense != nullptr && (fault.kind != Kind::kNone || loss_scale < 1)) {
      const size_t bad = FirstNotFinite(codec, own.data(), part.count, 1 / loss_scale);
      fault = {};
      if (bad < part.count) fault = {Kind::kNotFinite, part.offset + bad, {}};
    }
    const size_t padding = PartBytes(part, plan_->StageOf(clock)) - bytes;
    const ConstBytes pad = in.subspan(offset + bytes, padding);
    if (fault.kind == Kind::kNone &&
        std::any_of(pad.begin(), pad.end(), [](std::byte b) { return b != std::byte{0}; })) {
      fault = {Kind::kMalformed, part.offset + part.count - 1, "padding is not zero"};
    }
    return fault.kind == Kind::kNone;
  });
  return fault;
}

void ChunkCodec::Decode(const std::byte* in, float loss_scale, Clock clock, float* out) const {
  ForEach(clock, [&](const Part& part, const Codec& codec, size_t offset) {
    codec.Decode(in + offset, part.count, part.dense != nullptr ? 1 / loss_scale : 1,
                 out + part.offset);
    return true;
  });
}

void ChunkCodec::DecodeAdd(const std::byte* in, float loss_scale, Clock clock, float* out) const {
  ForEach(clock, [&](const Part& part, const Codec& codec, size_t offset) {
    codec.DecodeAdd(in + offset, part.count, part.dense != nullptr ? 1 / loss_scale : 1,
                    out + part.offset);
    return true;
  });
}

}  // namespace slackline
