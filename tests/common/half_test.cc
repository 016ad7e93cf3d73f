#include "common/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "common/random.h"

namespace slackline {
namespace {

constexpr uint32_t kAllBits16 = 0x10000;

struct Format {
  const char* name;
  uint16_t (*from_float)(float);
  float (*to_float)(uint16_t);
  bool (*is_finite)(uint16_t);
  int fraction_bits;
  int min_exponent;  // Of the smallest normal value.
  float max;
  uint16_t infinity_bits;
};

constexpr Format kFp16 = {"fp16", Fp16FromFloat, FloatFromFp16, IsFiniteFp16,
                          10,     -14,           kMaxFp16,      0x7C00};
constexpr Format kBf16 = {"bf16", Bf16FromFloat, FloatFromBf16, IsFiniteBf16,
                          7,      -126,          kMaxBf16,      0x7F80};

// Rounding written from its definition, in double precision, where all of it is exact: the nearest
// multiple of the unit in the last place, ties to even, and infinity from half a unit above max.
float RoundByDefinition(const Format& format, float value) {
  if (value == 0 || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double unit = std::ldexp(1.0, exponent - format.fraction_bits);
  const double rounded = std::nearbyint(static_cast<double>(value) / unit) * unit;
  if (std::fabs(rounded) > format.max) return std::copysign(HUGE_VALF, value);
  return static_cast<float>(std::copysign(rounded, value));
}

class HalfTest : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, HalfTest, ::testing::Values(kFp16, kBf16),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(HalfTest, EveryValueRoundTrips) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < kAllBits16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = format.to_float(bits);
    ASSERT_EQ(format.is_finite(bits), std::isfinite(value)) << i;
    const uint16_t back = format.from_float(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(format.to_float(back))) << i;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << "a NaN keeps its sign, " << i;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST_P(HalfTest, EveryMidpointTiesToEvenAndItsNeighboursDoNot) {
  const Format& format = GetParam();
  for (uint16_t low = 0; low + 1 < format.infinity_bits; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle =
        static_cast<float>((static_cast<double>(format.to_float(low)) + format.to_float(high)) / 2);
    const uint16_t even = (low & 1) == 0 ? low : high;
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const float signed_middle = sign != 0 ? -middle : middle;
      ASSERT_EQ(format.from_float(signed_middle), even | sign) << low;
      ASSERT_EQ(format.from_float(std::nextafter(signed_middle, 0.0f)), low | sign) << low;
      const float outward = std::copysign(HUGE_VALF, signed_middle);
      ASSERT_EQ(format.from_float(std::nextafter(signed_middle, outward)), high | sign) << low;
    }
  }
}

TEST_P(HalfTest, OverflowStartsHalfAUnitAboveTheLargestValue) {
  const Format& format = GetParam();
  const double unit = std::ldexp(1.0, std::ilogb(format.max) - format.fraction_bits);
  const float threshold = static_cast<float>(format.max + unit / 2);
  const auto max_bits = static_cast<uint16_t>(format.infinity_bits - 1);
  EXPECT_EQ(format.to_float(max_bits), format.max);
  EXPECT_EQ(format.from_float(std::nextafter(threshold, 0.0f)), max_bits);
  EXPECT_EQ(format.from_float(threshold), format.infinity_bits);
  EXPECT_EQ(format.from_float(-threshold), format.infinity_bits | 0x8000);
  EXPECT_EQ(format.from_float(HUGE_VALF), format.infinity_bits);
}

TEST_P(HalfTest, RandomPatternsRoundByDefinition) {
  const Format& format = GetParam();
  Rng rng(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(rng.Next()));
    if (std::isnan(value)) continue;
    const float expected = RoundByDefinition(format, value);
    const float actual = format.to_float(format.from_float(value));
    ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << value;
  }
}

TEST_P(HalfTest, NaNStaysQuietNaNWhateverItsPayload) {
  const Format& format = GetParam();
  // The payload's only set bit is below what either format keeps: truncation would make infinity.
  for (const uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FC00000u, 0x7FFFFFFFu}) {
    const uint16_t narrow = format.from_float(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(format.to_float(narrow))) << bits;
    const int quiet_bit = 1 << (format.fraction_bits - 1);
    EXPECT_NE(narrow & quiet_bit, 0) << bits;
  }
}

TEST(HalfConstants, AreUsableAtCompileTime) {
  static_assert(Fp16FromFloat(1.0f) == 0x3C00 && FloatFromFp16(0xC000) == -2.0f);
  static_assert(Bf16FromFloat(1.0f) == 0x3F80 && FloatFromBf16(0xC000) == -2.0f);
  static_assert(FloatFromFp16(kMaxFp16Bits) == kMaxFp16 && Fp16FromFloat(kMaxFp16) == kMaxFp16Bits);
  static_assert(FloatFromBf16(kMaxBf16Bits) == kMaxBf16 && Bf16FromFloat(kMaxBf16) == kMaxBf16Bits);
}

}  // namespace
}  // namespace slackline
