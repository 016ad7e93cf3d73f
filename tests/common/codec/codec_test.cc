#include "common/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/codec/reference.h"
#include "common/half.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFp32Max = std::numeric_limits<float>::max();

// Values of every kind: ordinary ones, exponents over the whole range (so FP16 subnormals, zeros
// and saturation), ties, and with `non_finite` now and then NaN or infinity.
std::vector<float> MixedValues(size_t count, uint32_t seed, bool non_finite) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    switch (random() % 8) {
      case 0:  // Any exponent.
        value = std::bit_cast<float>(bits);
        break;
      case 1: {  // A tie of FP16 rounding, normal or subnormal.
        const float step = FloatFromFp16(static_cast<uint16_t>(bits & 0x7BFF));
        const float next = FloatFromFp16(static_cast<uint16_t>((bits & 0x7BFF) + 1));
        value = std::isfinite(next) ? (step + next) / 2 : step;
        break;
      }
      case 2:  // A tie of BF16 rounding.
        value = std::bit_cast<float>((bits & 0xBFFF0000u) | 0x8000u);
        break;
      case 3:  // About the largest FP16.
        value = 65504.0f + static_cast<float>(static_cast<int>(bits % 65) - 32);
        break;
      default:
        value = std::ldexp(static_cast<float>(static_cast<int32_t>(bits)), -33);
    }
    if (!non_finite && !std::isfinite(value)) value = 1.5f;
    if (non_finite && random() % 50 == 0) value = random() % 2 == 0 ? kNan : -kInfinity;
  }
  return values;
}

// `count` valid encoded values of a codec.
std::vector<std::byte> MixedPayload(const Codec& codec, size_t count, uint32_t seed) {
  std::vector<std::byte> payload(codec.EncodedBytes(count));
  const std::vector<float> values = MixedValues(count, seed, false);
  reference::Encode(codec.id(), values.data(), count, 1, payload.data());
  return payload;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every length up to a few vectors, then some about the larger blocks.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 300; ++n) lengths.push_back(n);
  for (size_t n = 301; n <= 2100; n += 37) lengths.push_back(n);
  for (const size_t n : {511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049}) lengths.push_back(n);
  return lengths;
}

class DenseCodecTest : public testing::TestWithParam<CodecId> {
 protected:
  const Codec& codec_ = *FindCodec(GetParam());
};

std::string CodecTestName(const testing::TestParamInfo<CodecId>& info) {
  return std::string(FindCodec(info.param)->name());
}

INSTANTIATE_TEST_SUITE_P(Dense, DenseCodecTest,
                         testing::Values(CodecId::kFp32, CodecId::kFp16, CodecId::kBf16),
                         CodecTestName);

TEST_P(DenseCodecTest, EncodeEqualsReference) {
  // Some room in front lets every start be unaligned; bytes behind the output must stay.
  constexpr size_t kRoom = 4;
  const std::vector<float> values = MixedValues(2100 + kRoom, 1, true);
  ForEachSimdTarget([&] {
    for (const size_t count : Lengths()) {
      for (const float scale : {1.0f, 1024.0f, 0.3f}) {
        const size_t start = count % kRoom;
        const size_t bytes = codec_.EncodedBytes(count);
        std::vector<std::byte> expected(bytes + 4 * kRoom, std::byte{0xA5});
        std::vector<std::byte> actual = expected;
        const EncodeStats want = reference::Encode(GetParam(), values.data() + start, count, scale,
                                                   expected.data() + 4 * start);
        const EncodeStats got =
            codec_.Encode(values.data() + start, count, scale, actual.data() + 4 * start);
        ASSERT_EQ(actual, expected) << count << " values, scale " << scale;
        ASSERT_EQ(got.saturated, want.saturated) << count;
        ASSERT_EQ(got.non_finite, want.non_finite) << count;
      }
    }
  });
}

TEST_P(DenseCodecTest, DecodeEqualsReference) {
  constexpr size_t kRoom = 4;
  const std::vector<std::byte> payload = MixedPayload(codec_, 2100 + kRoom, 2);
  ForEachSimdTarget([&] {
    for (const size_t count : Lengths()) {
      for (const float scale : {1.0f, 1.0f / 1024, 0.3f}) {
        const size_t start = count % kRoom;
        const std::byte* in = payload.data() + codec_.EncodedBytes(start);
        std::vector<float> expected = MixedValues(count + kRoom, 3, false);
        std::vector<float> actual = expected;
        reference::Decode(GetParam(), in, count, scale, expected.data() + start);
        codec_.Decode(in, count, scale, actual.data() + start);
        ASSERT_TRUE(SameBits(actual, expected)) << count << " values, scale " << scale;

        reference::DecodeAdd(GetParam(), in, count, scale, expected.data() + start);
        codec_.DecodeAdd(in, count, scale, actual.data() + start);
        ASSERT_TRUE(SameBits(actual, expected)) << count << " values added, scale " << scale;
      }
    }
  });
}

TEST_P(DenseCodecTest, DecodeOfEncodeIsWithinHalfAStep) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, 3.14159274f, -2.5e-3f, 1234.5f};
  std::vector<std::byte> payload(codec_.EncodedBytes(values.size()));
  std::vector<float> decoded(values.size());
  codec_.Encode(values.data(), values.size(), 1, payload.data());
  codec_.Decode(payload.data(), values.size(), 1, decoded.data());
  const float relative = GetParam() == CodecId::kFp32   ? 0
                         : GetParam() == CodecId::kFp16 ? std::ldexp(1.0f, -11)
                                                        : std::ldexp(1.0f, -8);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(decoded[i], values[i], std::fabs(values[i]) * relative) << i;
    EXPECT_EQ(std::signbit(decoded[i]), std::signbit(values[i])) << i;
  }
}

TEST_P(DenseCodecTest, CountsAndReplacesWhatDoesNotFit) {
  const float largest = reference::LargestFinite(GetParam());
  // Times 2: the first two overflow FP32 itself, which must not become an infinity either.
  const std::vector<float> values = {kFp32Max, -kFp32Max, kNan, kInfinity, -kInfinity, 1.0f};
  ForEachSimdTarget([&] {
    std::vector<std::byte> payload(codec_.EncodedBytes(values.size()));
    std::vector<float> decoded(values.size());
    const EncodeStats stats = codec_.Encode(values.data(), values.size(), 2, payload.data());
    EXPECT_EQ(stats.saturated, 2u);
    EXPECT_EQ(stats.non_finite, 3u);
    codec_.Decode(payload.data(), values.size(), 1, decoded.data());
    EXPECT_THAT(decoded, testing::ElementsAre(largest, -largest, 0.0f, 0.0f, 0.0f, 2.0f));
    EXPECT_TRUE(codec_.Validate(payload, values.size()).ok());
  });
}

TEST_P(DenseCodecTest, ValidateNamesTheFirstValueThatIsNotFinite) {
  constexpr size_t kCount = 1031;
  const size_t value_bytes = codec_.EncodedBytes(1);
  const std::vector<std::byte> good = MixedPayload(codec_, kCount, 4);
  ForEachSimdTarget([&] {
    ASSERT_TRUE(codec_.Validate(good, kCount).ok());
    for (size_t bad = 0; bad < kCount; bad += bad < 140 ? 1 : 29) {
      std::vector<std::byte> payload = good;
      // All exponent bits set; the second culprit must not be the one that is named.
      for (const size_t index : {bad, kCount - 1}) {
        payload[(index + 1) * value_bytes - 1] |= std::byte{0x7F};
        payload[(index + 1) * value_bytes - 2] |= std::byte{0xF0};
      }
      const Status status = codec_.Validate(payload, kCount);
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
      ASSERT_THAT(status.message(), HasSubstr("at index " + std::to_string(bad) + " of 1031"));
    }
  });
}

TEST_P(DenseCodecTest, ValidateRefusesEveryOtherSize) {
  const std::vector<std::byte> payload(codec_.EncodedBytes(8) + 1);
  const ConstBytes bytes(payload);
  EXPECT_TRUE(codec_.Validate(bytes.first(codec_.EncodedBytes(8)), 8).ok());
  EXPECT_TRUE(codec_.Validate({}, 0).ok());
  EXPECT_EQ(codec_.Validate(bytes, 8).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(codec_.Validate(bytes.first(codec_.EncodedBytes(7)), 8).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(codec_.Validate({}, 8).code(), StatusCode::kInvalidArgument);
  // A count whose size in bytes would wrap around to the payload's size.
  const size_t wraps = std::numeric_limits<size_t>::max() / codec_.EncodedBytes(1) + 1;
  EXPECT_EQ(codec_.Validate({}, wraps).code(), StatusCode::kInvalidArgument);
}

// Every FP16 there is, decoded, and encoded back to the same bits.
TEST(Fp16CodecTest, AllFiniteValuesSurvive) {
  const Codec& codec = *FindCodec(CodecId::kFp16);
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    if (IsFiniteFp16(static_cast<uint16_t>(bits))) all.push_back(static_cast<uint16_t>(bits));
  }
  ForEachSimdTarget([&] {
    std::vector<float> values(all.size());
    std::vector<uint16_t> back(all.size());
    codec.Decode(reinterpret_cast<const std::byte*>(all.data()), all.size(), 1, values.data());
    const EncodeStats stats =
        codec.Encode(values.data(), all.size(), 1, reinterpret_cast<std::byte*>(back.data()));
    EXPECT_EQ(back, all);
    EXPECT_EQ(stats.saturated, 0u);
  });
}

TEST(Fp16CodecTest, SaturatesJustAboveTheLargest) {
  const Codec& codec = *FindCodec(CodecId::kFp16);
  const float above = std::nextafter(65504.0f, kInfinity);
  const std::vector<float> values = {65504.0f, above, -65520.0f, 1e30f};
  std::vector<uint16_t> encoded(4);
  const EncodeStats stats =
      codec.Encode(values.data(), 4, 1, reinterpret_cast<std::byte*>(encoded.data()));
  EXPECT_THAT(encoded, testing::ElementsAre(0x7BFF, 0x7BFF, 0xFBFF, 0x7BFF));
  EXPECT_EQ(stats.saturated, 3u);
}

TEST(CodecTest, FindsByNumberAndName) {
  for (const CodecId id : {CodecId::kFp32, CodecId::kFp16, CodecId::kBf16}) {
    const Codec* codec = FindCodec(id);
    ASSERT_NE(codec, nullptr);
    EXPECT_EQ(codec->id(), id);
    EXPECT_EQ(FindCodec(codec->name()), codec);
    EXPECT_THAT(std::string(CodecNames()), HasSubstr(std::string(codec->name())));
  }
  EXPECT_EQ(FindCodec(CodecId::kNone), nullptr);
  EXPECT_EQ(FindCodec(static_cast<CodecId>(250)), nullptr);
  EXPECT_EQ(FindCodec("fp8"), nullptr);
  EXPECT_EQ(FindCodec(""), nullptr);
}

}  // namespace
}  // namespace slackline
