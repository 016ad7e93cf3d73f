// What the codecs do to one value, in plain C++: the definition that their SIMD kernels and GPU
// kernels equal bit for bit, and that the scalar references are made of.
//
// Every operation is rounded once: whoever compiles this must not contract a product and a sum
// (-ffp-contract=off, nvcc's -fmad=false) nor flush subnormal numbers.
// Threading: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define SLACKLINE_HOST_DEVICE __host__ __device__
#else
#define SLACKLINE_HOST_DEVICE
#endif

namespace slackline {

// A block whose largest magnitude is below this is sent as zeros, and stays in the residual: its
// scale or the inverse of it would leave the range of normal floats.
inline constexpr float kSmallestScaled = 0x1p-96f;

// The factor of a block's codes and its inverse; `most` is the code of the largest magnitude.
struct BlockScale {
  float scale = 0;
  float inverse = 0;
};

SLACKLINE_HOST_DEVICE constexpr BlockScale ScaleOfBlock(float largest, float most) {
  if (largest < kSmallestScaled) return {};
  return {.scale = largest / most, .inverse = most / largest};
}

// 32 random bits that are a function of a seed and a position alone, so that any number of lanes
// or threads draws them in any order: the hash "lowbias32" of Wellons' hash prospector, of a number
// that each half of the seed shuffles.
SLACKLINE_HOST_DEVICE constexpr uint32_t RandomBits(uint64_t seed, uint32_t position) {
  uint32_t x =
      (position ^ static_cast<uint32_t>(seed >> 32)) * 0x9E3779B9u + static_cast<uint32_t>(seed);
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Uniform in [-0.5, 0.5]: added before rounding to nearest, it rounds up with the probability of
// the fraction (stochastic rounding), so that the mean of the result is the value.
SLACKLINE_HOST_DEVICE constexpr float Dither(uint64_t seed, uint32_t position) {
  return static_cast<float>(static_cast<int32_t>(RandomBits(seed, position))) * 0x1p-32f;
}

// The integer code of a value: `dither` is 0 to round to nearest even.
SLACKLINE_HOST_DEVICE inline int32_t IntegerCode(float value, float inverse, float dither,
                                                 int32_t most) {
  const auto code = static_cast<int32_t>(std::nearbyint(value * inverse + dither));
  return code > most ? most : (code < -most ? -most : code);
}

// A floating-point number of 8 bits: a sign, an exponent and kMantissaBits bits. E4M3 and E5M2 are
// those of Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433, table 1: E4M3
// has no infinity and one NaN, E5M2 has what IEEE 754 gives it. Only finite ones are ever written.
template <int kMantissa, int kExponentBias, uint32_t kLargest>
struct Float8 {
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = kExponentBias;
  static constexpr uint32_t kLargestCode = kLargest;  // Of the magnitudes.
  // FP32's bits of a magnitude, shifted to this mantissa, less this are the code of a normal one.
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kExponentBias) << 23;
  // The FP32 whose unit in the last place is the smallest step: adding it rounds a subnormal one.
  static constexpr uint32_t kMagicBits = static_cast<uint32_t>(127 + 24 - kExponentBias - kMantissa)
                                         << 23;
  static constexpr uint32_t kSmallestNormalBits = static_cast<uint32_t>(128 - kExponentBias) << 23;

  // Rounded to nearest even; `value` is of a magnitude that rounds to the largest at most.
  SLACKLINE_HOST_DEVICE static constexpr uint8_t FromFloat(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    uint32_t code;
    if (magnitude < kSmallestNormalBits) {
      code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) +
                                     std::bit_cast<float>(kMagicBits)) -
             kMagicBits;
    } else {
      const uint32_t odd = magnitude >> kShift & 1;
      code = (magnitude - kRebias + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    }
    return static_cast<uint8_t>(bits >> 24 & 0x80) | static_cast<uint8_t>(code);
  }

  // Exact. `code` is finite.
  SLACKLINE_HOST_DEVICE static constexpr float ToFloat(uint8_t code) {
    const uint32_t magnitude = code & 0x7Fu;
    const float value =
        magnitude < 1u << kMantissa
            ? std::bit_cast<float>(kMagicBits + magnitude) - std::bit_cast<float>(kMagicBits)
            : std::bit_cast<float>((magnitude << kShift) + kRebias);
    const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }

  static constexpr float Largest() { return ToFloat(static_cast<uint8_t>(kLargest)); }
};

using E4M3 = Float8<3, 7, 0x7E>;
using E5M2 = Float8<2, 15, 0x7B>;
static_assert(E4M3::Largest() == 448);
static_assert(E5M2::Largest() == 57344);

}  // namespace slackline
