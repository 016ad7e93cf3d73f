// The loops of the codecs with a residual, a tile of values at a time, compiled for every SIMD
// target and chosen at run time. The codecs hand them whole tiles only (a short last one is padded
// with zeros), so that no loop has a tail.
//
// Threading: pure functions. Memory: pointers need the alignment of their element type only.
// `block` and the count of a tile are multiples of kMinBlock, at most kMaxBlock. Bits equal
// common/codec/residual_reference.h on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/codec/codec.h"
#include "common/codec/residual_codec.h"

namespace slackline {

// A block whose largest magnitude is below this is sent as zeros, and stays in the residual: its
// scale or the inverse of it would leave the range of normal floats.
inline constexpr float kSmallestScaled = 0x1p-96f;

// The sum of a block's magnitudes has one order on every processor: value i is added to partial sum
// i mod kPartialSums, and those are added in pairs that halve.
inline constexpr size_t kPartialSums = 32;

struct BlockFormatKernels {
  // Writes the codes of `block` values, leaves in `values` what they lose, returns the scale. The
  // first `count` values are real; `largest` is their largest magnitude.
  float (*encode)(float* values, size_t block, size_t count, float largest, std::byte* codes);
  // out[i] = code[i] * factor, or added to out[i].
  void (*decode)(const std::byte* codes, size_t block, float factor, float* out);
  void (*decode_add)(const std::byte* codes, size_t block, float factor, float* out);
};

struct BlockKernels {
  // out[i] = in[i] * scale + residual[i], finite and clamped to kLargestCoded; `residual` may be
  // null, or out itself. Adds to `stats`; returns the largest magnitude.
  float (*load)(const float* in, const float* residual, size_t count, float scale, float* out,
                EncodeStats* stats);
  // Bit i % 8 of byte i / 8: whether the magnitude of value i is in [low, high).
  void (*mark)(const float* values, size_t count, float low, float high, std::byte* marks);
  BlockFormatKernels int8;
  BlockFormatKernels int4;
  BlockFormatKernels onebit;
};

const BlockKernels& GetBlockKernels();

}  // namespace slackline
