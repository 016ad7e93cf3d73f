// topk: only the values of largest magnitude travel, under one scale, with their indices.
//
// Kept are max(1, ceil(fraction * count)) values, so that a payload's size follows from the count.
// Magnitudes are compared by the upper 22 of their 31 bits (14 bits of mantissa, more than FP16
// keeps); among equal ones the lower index wins. The sparse gradient and its residual follow Aji
// and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
// Payload: the header, the values (common/codec/selected_values.h), the indices
// (common/codec/index_coding.h).
// Threading: immutable. Errors: see Codec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/index_coding.h"
#include "common/codec/payload_header.h"
#include "common/codec/residual_codec.h"

namespace slackline {

class TopKCodec final : public ResidualCodec {
 public:
  // 0 < fraction <= 1 (see MakeResidualCodec, which checks).
  TopKCodec(double fraction, ValueFormat values) : fraction_(fraction), values_(values) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string_view name() const override { return "topk"; }
  size_t EncodedBytes(size_t count) const override;
  EncodeStats EncodeResidual(const float* in, size_t count, float scale, const float* residual,
                             float* next_residual, const EncodeIdentity& identity,
                             std::byte* out) const override;
  Status Validate(ConstBytes in, size_t count) const override;
  void Decode(const std::byte* in, size_t count, float scale, float* out) const override;
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override;
  void ClearSent(const std::byte* payload, size_t count, float* values) const override;

 private:
  IndexLayout Layout(size_t count) const;
  PayloadHeader Header(const IndexLayout& layout) const;
  size_t IndicesOffset(const IndexLayout& layout) const;

  const double fraction_;
  const ValueFormat values_;
};

}  // namespace slackline
