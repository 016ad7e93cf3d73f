// topk: only the values of largest magnitude travel, as FP16 under one scale, with their indices.
//
// Kept are max(1, ceil(fraction * count)) values, so that a payload's size follows from the count.
// Magnitudes are compared by the upper 22 of their 31 bits (14 bits of mantissa, more than FP16
// keeps); among equal ones the lower index wins. The sparse gradient and its residual follow Aji
// and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
// Payload: the header, the FP16 values, the indices (common/codec/index_coding.h).
// Threading: immutable. Errors: see Codec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/index_coding.h"
#include "common/codec/payload_header.h"
#include "common/codec/residual_codec.h"

namespace slackline {

// Bits of a magnitude that do not count when values are compared.
inline constexpr uint32_t kTopKIgnoredBits = 9;

class TopKCodec final : public ResidualCodec {
 public:
  // 0 < fraction <= 1 (see MakeResidualCodec, which checks).
  explicit TopKCodec(double fraction) : fraction_(fraction) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string_view name() const override { return "topk"; }
  size_t EncodedBytes(size_t count) const override;
  EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) const override;
  EncodeStats EncodeResidual(const float* in, size_t count, float scale, const float* residual,
                             float* next_residual, std::byte* out) const override;
  Status Validate(ConstBytes in, size_t count) const override;
  void Decode(const std::byte* in, size_t count, float scale, float* out) const override;
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override;

  // How many of `count` values are sent.
  size_t Kept(size_t count) const;

 private:
  static PayloadHeader Header(const IndexLayout& layout);

  const double fraction_;
};

// The power of two by which values are divided before they become FP16: the largest magnitude,
// at least kSmallestScaled, comes to [2^14, 2^15).
float TopKScale(float largest);

}  // namespace slackline
