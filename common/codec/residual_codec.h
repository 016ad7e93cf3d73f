// Codecs that lose much and make up for it: by block (int8, int4, fp8, onebit) or by selection
// (topk, randk).
//
// What such a codec drops is kept by the sender and added to the next gradient (error feedback:
// Seide et al., "1-bit stochastic gradient descent", Interspeech 2014). Their payloads describe
// themselves in a header (common/codec/payload_header.h, docs/wire_format.md) and carry scales of
// their own, so they need no loss scale: whoever encodes divides it out with `scale`.
// Threading: immutable; any thread. Ownership: the caller's unique_ptr. Encoding and decoding do
// not allocate.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/codec/codec.h"
#include "common/status.h"

namespace slackline {

// Larger magnitudes are stored as this and counted as saturated: far above any gradient, and small
// enough that no sum or product inside a codec overflows.
inline constexpr float kLargestCoded = 0x1p96f;
// The most values in one payload (1 GiB of FP32).
inline constexpr size_t kMaxCodedValues = size_t{1} << 28;

// What is encoded: all that is random in an encoding (stochastic rounding, the choice of randk) is
// a function of this, so that a resend or a replay has the same bytes on every processor.
struct EncodeIdentity {
  uint32_t worker = 0;
  int64_t clock = 0;
  uint32_t chunk = 0;
  uint32_t part = 0;  // Of a chunk that is encoded in several payloads.

  uint64_t Seed() const;        // Another one for each worker: rounding errors are independent.
  uint64_t SharedSeed() const;  // The same for all workers: randk's choices agree.
};

class ResidualCodec : public Codec {
 public:
  // As EncodeResidual of EncodeIdentity{} without a residual.
  EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) const final {
    return EncodeResidual(in, count, scale, nullptr, nullptr, {}, out);
  }

  // Encodes value[i] = in[i] * scale + residual[i] and sets next_residual[i] = value[i] -
  // decoded[i], where decoded is what Decode with scale 1 gives, bit for bit. `residual` is null
  // for the first clock, else finite and of magnitude kLargestCoded at most (what this wrote
  // before is). It is not changed: the caller keeps both until the push of these bytes is
  // acknowledged, and then lets next_residual take its place, so that a push which is given up
  // loses nothing. next_residual may be `residual` itself when there is no way back, or null if
  // nothing is to be kept. An input that is not finite counts as zero. `out` and counts are as for
  // Encode.
  virtual EncodeStats EncodeResidual(const float* in, size_t count, float scale,
                                     const float* residual, float* next_residual,
                                     const EncodeIdentity& identity, std::byte* out) const = 0;

  // Sets values[i] = 0 wherever the payload carries value i, for codecs that select; does nothing
  // for the others. `payload` is what this encoded.
  virtual void ClearSent(const std::byte* payload, size_t count, float* values) const = 0;
};

// Bounds of a block, in values; a block is a power of two.
inline constexpr size_t kMinBlock = 32;
inline constexpr size_t kMaxBlock = 4096;

struct ResidualCodecOptions {
  std::string_view name;  // One of ResidualCodecNames().
  size_t block = 0;  // Values that share a scale; 0: 256, or 1024 for onebit. Not for topk, randk.
  // topk, randk: the part of the values that is sent, in (0, 1].
  double fraction = 0.01;
  // int8, int4: rounds up with the probability of the fraction, by the EncodeIdentity. Decoders do
  // not need to know.
  bool stochastic = false;
  // topk, randk: values of 8 bits instead of FP16.
  bool int8_values = false;
  // False when nothing keeps what is lost: randk then multiplies what it sends by count / kept, so
  // that its mean is the gradient. With a residual that would diverge.
  bool error_feedback = true;
};

// InvalidArgument names the option, its value and what was expected.
Result<std::unique_ptr<const ResidualCodec>> MakeResidualCodec(const ResidualCodecOptions& options);
// "int8, int4, fp8_e4m3, ...": for messages.
std::string_view ResidualCodecNames();

}  // namespace slackline
