// Codecs: how a span of FP32 values (a gradient, or weights) becomes bytes on the wire and back.
//
// Found here are the dense ones (fp32, fp16, bf16), whose encoded size depends on the
// count alone and which keep no state. Those that quantize by block or select values are made by
// common/codec/residual_codec.h. Threading: a Codec is immutable and may be used from any thread at
// once. Errors: Validate() says why bytes cannot be decoded; the other functions require valid
// input, which their callers have checked (a peer's bytes go through Validate before a weight
// changes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status.h"
#include "common/types.h"

namespace slackline {

// The codec's number on the wire. Numbers are never reused.
enum class CodecId : uint8_t {
  kNone = 0,
  kFp32 = 1,
  kFp16 = 2,
  kBf16 = 3,
  // Codecs with a residual (common/codec/residual_codec.h); FindCodec does not know them.
  kInt8 = 4,
  kInt4 = 5,
  kOneBit = 6,
  kTopK = 7,
  kFp8E4M3 = 8,
  kFp8E5M2 = 9,
  kRandK = 10,
  kSharedScale8 = 11,  // common/codec/shared_scale_codec.h
};

struct EncodeStats {
  size_t saturated =
      0;  // Finite values whose magnitude exceeds the format's largest (FP16: 65504).
  size_t non_finite = 0;  // NaN or infinity in the input.
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  virtual std::string_view name() const = 0;

  // Exact bytes of `count` encoded values, known before encoding.
  virtual size_t EncodedBytes(size_t count) const = 0;

  // Encodes in[i] * scale, rounding to nearest even. `out` holds EncodedBytes(count) bytes, aligned
  // to 4 bytes. A value that does not fit is stored as the largest finite one and counted, never as
  // a silent infinity; one that is not finite is counted and stored as zero.
  virtual EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) const = 0;

  // Checks bytes from a peer: the size for `count` values and that every value is finite.
  // InvalidArgument names the first bad index (the caller names the tensor).
  virtual Status Validate(ConstBytes in, size_t count) const = 0;

  // out[i] = in[i] * scale.
  virtual void Decode(const std::byte* in, size_t count, float scale, float* out) const = 0;
  // out[i] += in[i] * scale.
  virtual void DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const = 0;
};

// The dense codec of a number or a name; null when there is none. The objects live for ever.
const Codec* FindCodec(CodecId id);
const Codec* FindCodec(std::string_view name);
// "fp32, fp16, bf16": for messages about flags.
std::string_view CodecNames();

}  // namespace slackline
