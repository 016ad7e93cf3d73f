// FP16 (IEEE 754 binary16) and BF16 as bit patterns, converted from and to FP32 one value at a
// time. This is the reference that the SIMD kernels of the codecs must equal bit for bit; it is
// also what they use for tails.
//
// Rounding is to nearest, ties to even, with subnormal results kept (not flushed). A magnitude that
// rounds past the largest finite value becomes infinity; saturating instead is the codec's job. A
// NaN stays a NaN, made quiet, with the upper bits of its payload (as the x86 and ARM instructions
// do). Conversion to FP32 is exact.
// Threading: pure functions, usable in constant expressions.
#pragma once

#include <bit>
#include <cstdint>

namespace slackline {

inline constexpr float kMaxFp16 = 65504.0f;
// The largest finite BF16, 0x7F7F: (2 - 2^-7) * 2^127.
inline constexpr float kMaxBf16 = std::bit_cast<float>(0x7F7F0000u);
inline constexpr uint16_t kMaxFp16Bits = 0x7BFF;
inline constexpr uint16_t kMaxBf16Bits = 0x7F7F;

constexpr bool IsFiniteFp16(uint16_t bits) { return (bits & 0x7C00) != 0x7C00; }
constexpr bool IsFiniteBf16(uint16_t bits) { return (bits & 0x7F80) != 0x7F80; }

constexpr uint16_t Fp16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t result;
  if (magnitude > 0x7F800000) {  // NaN: infinity's exponent, the quiet bit, the payload's top bits.
    result = 0x7E00 | ((magnitude >> 13) & 0x3FF);
  } else if (magnitude >= 0x47800000) {  // At least 2^16, infinity included.
    result = 0x7C00;
  } else if (magnitude >= 0x38800000) {  // At least 2^-14: normal in FP16.
    // Half a unit in the last place, less one if the last kept bit is even, then truncate. A carry
    // runs into the exponent, which is the right result, up to infinity from 65520 on.
    const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
    result = (rounded - 0x38000000) >> 13;  // 112 exponents lie between the two biases.
  } else if (magnitude > 0x33000000) {      // Above 2^-25, half of the smallest subnormal.
    const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
    const uint32_t shift = 126 - (magnitude >> 23);  // To units of 2^-24; 14 to 24.
    const uint32_t half = 1u << (shift - 1);
    const uint32_t rest = significand & ((1u << shift) - 1);
    result = significand >> shift;
    if (rest > half || (rest == half && (result & 1) != 0)) ++result;
  } else {  // Rounds to zero; exactly half of the smallest subnormal ties to the even zero.
    result = 0;
  }
  return static_cast<uint16_t>(sign | result);
}

constexpr float FloatFromFp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t fraction = bits & 0x3FF;
  uint32_t result;
  if (exponent == 0x1F) {  // Infinity or NaN; a signalling NaN becomes quiet.
    result = 0x7F800000 | (fraction << 13) | (fraction != 0 ? 0x400000 : 0);
  } else if (exponent != 0) {
    result = ((exponent + 112) << 23) | (fraction << 13);
  } else if (fraction != 0) {  // Subnormal: fraction * 2^-24, normal in FP32.
    const uint32_t leading = static_cast<uint32_t>(std::bit_width(fraction)) - 1;
    result = ((leading + 103) << 23) | ((fraction << (23 - leading)) & 0x7FFFFF);
  } else {
    result = 0;
  }
  return std::bit_cast<float>(sign | result);
}

constexpr uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  // BF16 is the upper half of FP32, so the same carry argument holds for every exponent.
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

constexpr float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace slackline
