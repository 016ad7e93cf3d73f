// Codecs that lose much and make up for it: by block (int8, int4, onebit) or by selection (topk).
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

class ResidualCodec : public Codec {
 public:
  // Encodes value[i] = in[i] * scale + residual[i] and sets next_residual[i] = value[i] -
  // decoded[i], where decoded is what Decode with scale 1 gives, bit for bit. `residual` is null
  // for the first clock, else finite and of magnitude kLargestCoded at most (what this wrote
  // before is). It is not changed: the caller keeps both until the push of these bytes is
  // acknowledged, and then lets next_residual take its place, so that a push which is given up
  // loses nothing. next_residual may be `residual` itself when there is no way back. An input that
  // is not finite counts as zero. `out` and counts are as for Encode.
  virtual EncodeStats EncodeResidual(const float* in, size_t count, float scale,
                                     const float* residual, float* next_residual,
                                     std::byte* out) const = 0;
};

// Bounds of a block, in values; a block is a power of two.
inline constexpr size_t kMinBlock = 32;
inline constexpr size_t kMaxBlock = 4096;

struct ResidualCodecOptions {
  std::string_view name;   // One of ResidualCodecNames().
  size_t block = 0;        // Values that share a scale; 0: 256, or 1024 for onebit. topk has none.
  double fraction = 0.01;  // topk: the part of the values that is sent, in (0, 1].
};

// InvalidArgument names the option, its value and what was expected.
Result<std::unique_ptr<const ResidualCodec>> MakeResidualCodec(const ResidualCodecOptions& options);
// "int8, int4, onebit, topk": for messages.
std::string_view ResidualCodecNames();

}  // namespace slackline
