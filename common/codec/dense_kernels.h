// The loops of the dense codecs, compiled for every SIMD target and chosen at run time for this
// processor. Threading: pure functions. Memory: pointers need the alignment of their element type
// only; input and output must not overlap. Bits equal common/codec/reference.h on every processor.
#pragma once

#include <cstddef>

#include "common/codec/codec.h"

namespace slackline {

struct DenseKernels {
  // Codec::Encode, Decode and DecodeAdd.
  EncodeStats (*encode)(const float* in, size_t count, float scale, std::byte* out);
  void (*decode)(const std::byte* in, size_t count, float scale, float* out);
  void (*decode_add)(const std::byte* in, size_t count, float scale, float* out);
  // The index of the first NaN or infinity among `count` encoded values; `count` if there is none.
  size_t (*first_non_finite)(const std::byte* in, size_t count);
};

const DenseKernels& Fp32Kernels();
const DenseKernels& Fp16Kernels();
const DenseKernels& Bf16Kernels();

}  // namespace slackline
