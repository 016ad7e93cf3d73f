#include "common/codec/arithmetic.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace slackline {
namespace {

// What a code of 8 bits means by its definition: (-1)^s * 2^(e - bias) * (1 + m / 2^bits), and
// without the 1 at exponent 1 where e is 0.
double Meaning(uint8_t code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7F) >> mantissa_bits;
  const double fraction = (code & ((1 << mantissa_bits) - 1)) / std::ldexp(1.0, mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

template <class Format>
void ExpectNearest(float value) {
  uint8_t best = 0;
  double distance = INFINITY;
  for (uint32_t code = 0; code <= Format::kLargestCode; ++code) {
    const double meaning =
        Meaning(static_cast<uint8_t>(code), Format::kMantissaBits, Format::kBias);
    const double off = std::fabs(meaning - std::fabs(static_cast<double>(value)));
    if (off < distance || (off == distance && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
      distance = off;
    }
  }
  if (std::signbit(value)) best |= 0x80;
  ASSERT_EQ(Format::FromFloat(value), best) << value;
}

template <class Format>
void ExpectFloat8() {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) > Format::kLargestCode) continue;
    const auto byte = static_cast<uint8_t>(code);
    const float value = Format::ToFloat(byte);
    ASSERT_EQ(static_cast<double>(value), Meaning(byte, Format::kMantissaBits, Format::kBias));
    ASSERT_EQ(std::signbit(value), code >= 128);
    ASSERT_EQ(Format::FromFloat(value), byte);
    // The middle between two neighbours, and what lies next to it.
    if ((code & 0x7F) == Format::kLargestCode) continue;
    const float middle = (value + Format::ToFloat(static_cast<uint8_t>(byte + 1))) / 2;
    for (const float near :
         {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, middle * 2)}) {
      ExpectNearest<Format>(near);
    }
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-30, std::log2(Format::Largest()));
  for (int i = 0; i < 20000; ++i) ExpectNearest<Format>(std::exp2(exponent(random)));
}

TEST(Float8Test, IsNearestByDefinition) {
  ExpectFloat8<E4M3>();
  ExpectFloat8<E5M2>();
}

// Counts of the upper and of the lower bits in bins: a chi-square within five deviations.
TEST(RandomBitsTest, AreUniformOverPositionsAndSeeds) {
  constexpr int kDraws = 1 << 16;
  constexpr int kBins = 256;
  for (const int shift : {24, 12, 0}) {
    for (const bool by_seed : {false, true}) {
      std::array<int, kBins> counts{};
      for (uint32_t i = 0; i < kDraws; ++i) {
        const uint32_t bits =
            by_seed ? RandomBits(uint64_t{i} << 32 | i / 7, 5) : RandomBits(0x123456789ABCDEF, i);
        ++counts[bits >> shift & (kBins - 1)];
      }
      double chi_square = 0;
      for (const int count : counts) {
        chi_square += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
      }
      EXPECT_NEAR(chi_square, kBins - 1, 5 * std::sqrt(2.0 * (kBins - 1))) << shift << by_seed;
    }
  }
}

// Neighbours, and the same position under neighbouring seeds, have nothing in common.
TEST(RandomBitsTest, AreIndependent) {
  constexpr int kDraws = 1 << 16;
  double positions = 0;
  double low_seeds = 0;
  double high_seeds = 0;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const auto dither = static_cast<double>(Dither(1, i));
    positions += dither * static_cast<double>(Dither(1, i + 1));
    low_seeds += dither * static_cast<double>(Dither(2, i));
    high_seeds += dither * static_cast<double>(Dither(1 + (uint64_t{1} << 32), i));
  }
  // A product of two uniform ones in [-1/2, 1/2] has a standard deviation of 1/12.
  const double bound = 5 * std::sqrt(kDraws) / 12;
  EXPECT_LT(std::fabs(positions), bound);
  EXPECT_LT(std::fabs(low_seeds), bound);
  EXPECT_LT(std::fabs(high_seeds), bound);
}

TEST(IntegerCodeTest, RoundsAndStaysInRange) {
  EXPECT_EQ(IntegerCode(2.5f, 1, 0, 7), 2);
  EXPECT_EQ(IntegerCode(3.5f, 1, 0, 7), 4);
  EXPECT_EQ(IntegerCode(-2.5f, 1, 0, 7), -2);
  EXPECT_EQ(IntegerCode(7, 1.0001f, 0.5f, 7), 7);
  EXPECT_EQ(IntegerCode(-7, 1.0001f, -0.5f, 7), -7);
  EXPECT_EQ(IntegerCode(0, 1, 0.5f, 7), 0);  // Zero stays zero.
  EXPECT_EQ(IntegerCode(0, 1, -0.5f, 7), 0);
}

}  // namespace
}  // namespace slackline
