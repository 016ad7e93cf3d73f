// The codecs one value at a time in plain C++: the oracle that tests hold the SIMD kernels to, bit
// for bit. Not for the data path. Threading: pure functions.
#pragma once

#include <cstddef>

#include "common/codec/codec.h"

namespace slackline::reference {

// As the members of Codec of the same names, for a dense codec (fp32, fp16, bf16).
EncodeStats Encode(CodecId codec, const float* in, size_t count, float scale, std::byte* out);
void Decode(CodecId codec, const std::byte* in, size_t count, float scale, float* out);
void DecodeAdd(CodecId codec, const std::byte* in, size_t count, float scale, float* out);
// The index of the first encoded value that is NaN or infinity; `count` if there is none.
size_t FirstNonFinite(CodecId codec, const std::byte* in, size_t count);

// One encoded value. `index` counts values.
float DecodeOne(CodecId codec, const std::byte* in, size_t index);
// `value` is finite and its magnitude at most LargestFinite(codec).
void EncodeOne(CodecId codec, float value, std::byte* out, size_t index);
float LargestFinite(CodecId codec);

}  // namespace slackline::reference
