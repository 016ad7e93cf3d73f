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

// The sum of a block's magnitudes has one order on every processor: value i is added to partial sum
// i mod kPartialSums, and those are added in pairs that halve.
inline constexpr size_t kPartialSums = 32;

// The values of a block, to be encoded.
struct BlockValues {
  float* values;  // `block` of them; the first `count` are real, zeros follow.
  size_t block;
  size_t count;
  float largest;   // Magnitude.
  uint64_t seed;   // For stochastic rounding.
  uint32_t first;  // Where the block begins in the payload.
};

struct BlockFormatKernels {
  // Writes the codes of a block, leaves in the values what they lose, returns the scale.
  float (*encode)(const BlockValues& in, std::byte* codes);
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
  // The index of the first byte whose lower seven bits are above `limit`; `count` if there is none.
  size_t (*first_above)(const std::byte* codes, size_t count, uint8_t limit);
  BlockFormatKernels int8;
  BlockFormatKernels int8_stochastic;
  BlockFormatKernels
      int8_limited;  // Codes beyond 127 are cut off: `largest` is not the block's own.
  BlockFormatKernels int4;
  BlockFormatKernels int4_stochastic;
  BlockFormatKernels onebit;
  BlockFormatKernels fp8_e4m3;
  BlockFormatKernels fp8_e5m2;
};

const BlockKernels& GetBlockKernels();

}  // namespace slackline
