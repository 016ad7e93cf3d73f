#include "common/codec/randk_codec.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "common/byte_order.h"
#include "common/codec/selected_values.h"
#include "common/codec/tiles.h"
#include "common/random.h"

namespace slackline {
namespace {

constexpr size_t kSeedBytes = sizeof(uint64_t);
constexpr size_t kValuesOffset = kPayloadHeaderBytes + kSeedBytes;
constexpr size_t kBatch = 64;

uint64_t SeedOf(const std::byte* payload) {
  return LoadLe<uint64_t>(payload + kPayloadHeaderBytes);
}

}  // namespace

PayloadHeader RandKCodec::Header(size_t count) const {
  return {.codec = CodecId::kRandK,
          .values = values_,
          .count = static_cast<uint32_t>(count),
          .kept = static_cast<uint32_t>(KeptValues(fraction_, count))};
}

size_t RandKCodec::EncodedBytes(size_t count) const {
  return kValuesOffset + ValueBytes(values_) * KeptValues(fraction_, count);
}

EncodeStats RandKCodec::EncodeResidual(const float* in, size_t count, float scale,
                                       const float* residual, float* next_residual,
                                       const EncodeIdentity& identity, std::byte* out) const {
  CHECK_LE(count, kMaxCodedValues);
  CHECK(error_feedback_ || (residual == nullptr && next_residual == nullptr))
      << "randk without error feedback has no residual";
  PayloadHeader header = Header(count);
  header.scale = SelectedScale(values_, 0);
  EncodeStats stats;
  if (count != 0) {
    const size_t kept = header.kept;
    Tiles tiles(in, count, scale, residual, next_residual);
    for (size_t first = 0; first < count; first += kTile) tiles.Load(first);
    stats = tiles.stats();
    const SelectedValues chosen = SelectedScratch(kept);
    const Permutation order(count, identity.SharedSeed());
    for (size_t i = 0; i < kept; ++i) {
      chosen.indices[i] = static_cast<uint32_t>(order(i));
      chosen.values[i] = tiles.At(chosen.indices[i]);
    }
    if (!error_feedback_) {
      const float factor = static_cast<float>(count) / static_cast<float>(kept);
      for (size_t i = 0; i < kept; ++i) {
        chosen.values[i] = std::clamp(chosen.values[i] * factor, -kLargestCoded, kLargestCoded);
      }
    }
    EncodeSelected(values_, kept, chosen.values, &header.scale, out + kValuesOffset);
    for (size_t i = 0; next_residual != nullptr && i < kept; ++i) {
      next_residual[chosen.indices[i]] = chosen.values[i];
    }
  }
  StorePayloadHeader(header, out);
  StoreLe<uint64_t>(out + kPayloadHeaderBytes, identity.SharedSeed());
  return stats;
}

Status RandKCodec::Validate(ConstBytes in, size_t count) const {
  if (count > kMaxCodedValues) {
    std::ostringstream message;
    message << "randk payload of " << count << " values, expected " << kMaxCodedValues
            << " at most";
    return InvalidArgument(message.str());
  }
  // Any seed is a good one.
  const PayloadHeader header = Header(count);
  SLACKLINE_RETURN_IF_ERROR(CheckPayloadHeader(in, header, EncodedBytes(count), name()));
  return CheckSelected(values_, PayloadScale(in.data()), in.data() + kValuesOffset, header.kept,
                       name());
}

void RandKCodec::Decode(const std::byte* in, size_t count, float scale, float* out) const {
  std::fill_n(out, count, 0.0f);
  DecodeAdd(in, count, scale, out);
}

void RandKCodec::DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const {
  if (count == 0) return;
  const size_t kept = KeptValues(fraction_, count);
  const float factor = PayloadScale(in) * scale;
  const Permutation order(count, SeedOf(in));
  std::array<float, kBatch> values;
  std::array<uint32_t, kBatch> batch;
  for (size_t first = 0; first < kept; first += kBatch) {
    const size_t n = std::min(kBatch, kept - first);
    // Each position is a cache line of its own, so the lines of a batch are asked for ahead.
    for (size_t i = 0; i < n; ++i) {
      batch[i] = static_cast<uint32_t>(order(first + i));
      __builtin_prefetch(out + batch[i], 1);
    }
    DecodeSelected(values_, in + kValuesOffset, first, n, factor, values.data());
    for (size_t i = 0; i < n; ++i) out[batch[i]] += values[i];
  }
}

void RandKCodec::ClearSent(const std::byte* payload, size_t count, float* values) const {
  if (count == 0) return;
  const size_t kept = KeptValues(fraction_, count);
  const Permutation order(count, SeedOf(payload));
  for (size_t i = 0; i < kept; ++i) values[order(i)] = 0;
}

}  // namespace slackline
