// sharedscale8: integers of 8 bits under scales that all workers of a BSP clock agree on, so that a
// server adds integers and decodes once.
//
// The agreement is a round of kReduce before the push: each worker contributes the largest
// magnitude of each of its blocks, and the aggregate, their maxima, gives every block its scale.
// The codes of workers are then multiples of one step: their sum is exact and does not depend on
// the order of arrival. A round rather than the scale of the clock before: a block that grows is
// never cut off, and a resumed or replaced worker needs no history.
// Payload: as of int8 (common/codec/block_codec.h), under a number of its own, so that it can be
// decoded by itself. Who sums must see that scales are the same (SameScales).
// Threading: immutable. Errors: see Codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/codec/block_codec.h"
#include "common/codec/codec.h"

namespace slackline {

class SharedScaleCodec final : public Codec {
 public:
  // `block` as for BlockCodec.
  explicit SharedScaleCodec(size_t block);

  CodecId id() const override { return CodecId::kSharedScale8; }
  std::string_view name() const override { return "sharedscale8"; }
  size_t EncodedBytes(size_t count) const override { return codec_.EncodedBytes(count); }
  // The values contributed to the agreement: one a block.
  size_t ScaleCount(size_t count) const { return (count + block_ - 1) / block_; }

  // The largest magnitude of in[i] * scale + residual[i] in each block; `residual` may be null.
  // Values are limited as in ResidualCodec::EncodeResidual, but not counted.
  void FindLargest(const float* in, size_t count, float scale, const float* residual,
                   float* largest) const;
  // As ResidualCodec::EncodeResidual, under the agreed largest magnitudes, each finite, from 0 to
  // kLargestCoded. A value above its block's (of one that joined after the agreement) is cut off;
  // the rest of it stays in the residual.
  EncodeStats EncodeShared(const float* in, size_t count, float scale, const float* residual,
                           float* next_residual, const float* largest, std::byte* out) const;
  // With scales of its own: for one that sends alone.
  EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) const override;

  Status Validate(ConstBytes in, size_t count) const override { return codec_.Validate(in, count); }
  void Decode(const std::byte* in, size_t count, float scale, float* out) const override {
    codec_.Decode(in, count, scale, out);
  }
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override {
    codec_.DecodeAdd(in, count, scale, out);
  }

  // Of valid payloads: whether they may be summed.
  bool SameScales(const std::byte* a, const std::byte* b, size_t count) const;
  // sum[i] += code[i], or = if `first`. Exact for 2^24 payloads.
  void AddCodes(const std::byte* in, size_t count, bool first, int32_t* sum) const;
  // out[i] = sum[i] * the scale of its block in `in` * scale.
  void DecodeSum(const std::byte* in, const int32_t* sum, size_t count, float scale,
                 float* out) const;

 private:
  const std::byte* Codes(const std::byte* in, size_t count) const;

  const size_t block_;
  const BlockCodec codec_;
};

}  // namespace slackline
