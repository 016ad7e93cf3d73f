// randk: values at random positions travel, chosen without replacement by a seed that all workers
// share, so that no index does.
//
// Kept are max(1, ceil(fraction * count)) values. With error feedback they are sent as they are;
// without it multiplied by count / kept, which makes the expectation the gradient (Stich,
// Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, section 2; with a residual that
// form diverges). The i-th value is the one at position Permutation(count, seed)(i). Payload: the
// header, the seed, the values (common/codec/selected_values.h). Threading: immutable. Errors: see
// Codec.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/payload_header.h"
#include "common/codec/residual_codec.h"

namespace slackline {

class RandKCodec final : public ResidualCodec {
 public:
  // 0 < fraction <= 1 (see MakeResidualCodec, which checks).
  RandKCodec(double fraction, ValueFormat values, bool error_feedback)
      : fraction_(fraction), values_(values), error_feedback_(error_feedback) {}

  CodecId id() const override { return CodecId::kRandK; }
  std::string_view name() const override { return "randk"; }
  size_t EncodedBytes(size_t count) const override;
  // Without error feedback, `residual` and `next_residual` are null.
  EncodeStats EncodeResidual(const float* in, size_t count, float scale, const float* residual,
                             float* next_residual, const EncodeIdentity& identity,
                             std::byte* out) const override;
  Status Validate(ConstBytes in, size_t count) const override;
  void Decode(const std::byte* in, size_t count, float scale, float* out) const override;
  void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const override;
  void ClearSent(const std::byte* payload, size_t count, float* values) const override;

 private:
  PayloadHeader Header(size_t count) const;

  const double fraction_;
  const ValueFormat values_;
  const bool error_feedback_;
};

}  // namespace slackline
