#include "common/codec/residual_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/codec/residual_reference.h"
#include "common/codec/selected_values.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// What lies behind an output must stay.
constexpr std::byte kGuard{0xA5};
constexpr float kGuardValue = 12345;

std::unique_ptr<const ResidualCodec> Make(const ResidualCodecOptions& options) {
  auto codec = MakeResidualCodec(options);
  if (!codec) {
    ADD_FAILURE() << codec.error();
    return nullptr;
  }
  return std::move(*codec);
}

// Gradients as they are (normal, of many sizes), with zeros of both signs, values that tie, and
// with `wild` now and then one that is huge, tiny or not finite.
std::vector<float> Gradients(size_t count, uint32_t seed, bool wild) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    const uint32_t kind = static_cast<uint32_t>(random()) % 16;
    if (kind == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
    if (kind == 1) value = static_cast<float>(static_cast<int>(random() % 17) - 8) / 2;
    if (kind == 2) value = std::ldexp(value, -20);
    if (wild && random() % 100 == 0) {
      const float odd[] = {kNan, kInfinity, -kInfinity, 1e38f, -1e38f, 1e-38f, 1e-44f};
      value = odd[random() % 7];
    }
  }
  return values;
}

std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 70; ++n) lengths.push_back(n);
  for (size_t n = 71; n <= 2100; n += 61) lengths.push_back(n);
  for (const size_t n : {255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049}) {
    lengths.push_back(n);
  }
  return lengths;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  // Compared as integers: memcmp must not see the null pointers of empty spans.
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

constexpr EncodeIdentity kIdentity = {.worker = 3, .clock = 70, .chunk = 11};

struct Case {
  const char* label;
  ResidualCodecOptions options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

class ResidualCodecTest : public testing::TestWithParam<Case> {
 protected:
  reference::Encoded Reference(std::span<const float> in, float scale,
                               std::span<const float> residual,
                               const EncodeIdentity& identity) const {
    const ResidualCodecOptions& options = GetParam().options;
    const size_t kept = KeptValues(options.fraction, in.size());
    const ValueFormat format = options.int8_values ? ValueFormat::kInt8 : ValueFormat::kFp16;
    if (codec_->id() == CodecId::kTopK) {
      return reference::EncodeTopK(kept, format, in, scale, residual);
    }
    if (codec_->id() == CodecId::kRandK) {
      const float factor =
          options.error_feedback ? 1 : static_cast<float>(in.size()) / static_cast<float>(kept);
      return reference::EncodeRandK(kept, format, factor, identity.SharedSeed(), in, scale,
                                    residual);
    }
    const size_t otherwise = codec_->id() == CodecId::kOneBit ? 1024 : 256;
    const size_t block = options.block == 0 ? otherwise : options.block;
    std::optional<uint64_t> seed;
    if (options.stochastic) seed = identity.Seed();
    return reference::EncodeByBlock(codec_->id(), block, seed, in, scale, residual);
  }

  bool Selects() const { return codec_->id() == CodecId::kTopK || codec_->id() == CodecId::kRandK; }

  std::vector<std::byte> Encode(std::span<const float> in) const {
    std::vector<std::byte> payload(codec_->EncodedBytes(in.size()));
    codec_->Encode(in.data(), in.size(), 1, payload.data());
    return payload;
  }

  const std::unique_ptr<const ResidualCodec> codec_ = Make(GetParam().options);
};

INSTANTIATE_TEST_SUITE_P(
    All, ResidualCodecTest,
    testing::Values(Case{"int8", {.name = "int8"}}, Case{"int8by32", {.name = "int8", .block = 32}},
                    Case{"int8stochastic", {.name = "int8", .stochastic = true}},
                    Case{"int4", {.name = "int4"}},
                    Case{"int4by4096", {.name = "int4", .block = 4096}},
                    Case{"int4stochastic", {.name = "int4", .block = 64, .stochastic = true}},
                    Case{"e4m3", {.name = "fp8_e4m3"}},
                    Case{"e4m3by32", {.name = "fp8_e4m3", .block = 32}},
                    Case{"e5m2", {.name = "fp8_e5m2"}}, Case{"onebit", {.name = "onebit"}},
                    Case{"onebitBy64", {.name = "onebit", .block = 64}},
                    Case{"topk1percent", {.name = "topk", .fraction = 0.01}},
                    Case{"topk30percent", {.name = "topk", .fraction = 0.3}},
                    Case{"topkInt8", {.name = "topk", .fraction = 0.05, .int8_values = true}},
                    Case{"topkAll", {.name = "topk", .fraction = 1}},
                    Case{"randk10percent", {.name = "randk", .fraction = 0.1}},
                    Case{"randkInt8", {.name = "randk", .fraction = 0.3, .int8_values = true}},
                    Case{"randkAll", {.name = "randk", .fraction = 1}}),
    [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.label); });

TEST_P(ResidualCodecTest, EncodeEqualsReference) {
  constexpr size_t kRoom = 4;
  const std::vector<float> values = Gradients(2100 + kRoom, 1, true);
  const std::vector<float> kept = Gradients(2100 + kRoom, 2, false);
  ForEachSimdTarget([&] {
    for (const size_t count : Lengths()) {
      const size_t start = count % kRoom;  // Not aligned to a vector.
      const float scale = count % 3 == 0 ? 1.0f : 1.0f / 1024;
      const std::span in(values.data() + start, count);
      const std::span residual(kept.data() + start, count);
      const size_t bytes = codec_->EncodedBytes(count);

      const reference::Encoded plain = Reference(in, scale, {}, {});
      ASSERT_EQ(plain.payload.size(), bytes) << count;
      std::vector<std::byte> payload(bytes + 1, kGuard);
      EncodeStats stats = codec_->Encode(in.data(), count, scale, payload.data());
      ASSERT_EQ(payload.back(), kGuard) << count;
      payload.pop_back();
      ASSERT_EQ(payload, plain.payload) << count << " values";
      ASSERT_EQ(stats.saturated, plain.stats.saturated) << count;
      ASSERT_EQ(stats.non_finite, plain.stats.non_finite) << count;

      const reference::Encoded want = Reference(in, scale, residual, kIdentity);
      payload.assign(bytes + 1, kGuard);
      std::vector<float> next(count + 1, kGuardValue);
      stats = codec_->EncodeResidual(in.data(), count, scale, residual.data(), next.data(),
                                     kIdentity, payload.data());
      ASSERT_EQ(payload.back(), kGuard) << count;
      ASSERT_EQ(next.back(), kGuardValue) << count;
      payload.pop_back();
      next.pop_back();
      ASSERT_EQ(payload, want.payload) << count << " values with residual";
      ASSERT_TRUE(SameBits(next, want.residual)) << count;
      ASSERT_EQ(stats.saturated, want.stats.saturated) << count;
      ASSERT_EQ(stats.non_finite, want.stats.non_finite) << count;
    }
  });
}

TEST_P(ResidualCodecTest, DecodeEqualsReference) {
  const std::vector<float> values = Gradients(2103, 3, true);
  const std::vector<float> before = Gradients(2104, 4, false);
  ForEachSimdTarget([&] {
    for (const size_t count : Lengths()) {
      const size_t start = count % 4;
      const reference::Encoded coded = Reference(std::span(values.data(), count), 1, {}, {});
      ASSERT_TRUE(codec_->Validate(coded.payload, count).ok())
          << codec_->Validate(coded.payload, count);
      std::vector<float> out(count + 4, kGuardValue);
      codec_->Decode(coded.payload.data(), count, 1, out.data() + start);
      const std::span decoded(out.data() + start, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(decoded[i], coded.decoded[i]) << i;
      ASSERT_EQ(out[start + count], kGuardValue) << count;

      out = before;
      codec_->DecodeAdd(coded.payload.data(), count, 0.25f, out.data() + start);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[start + i], before[start + i] + 0.25f * coded.decoded[i]) << i;
      }
      ASSERT_EQ(out[start + count], before[start + count]) << count;
    }
  });
}

// The bytes and what is left are the same whether the next residual has a place of its own or not,
// and with none given zeros are meant.
TEST_P(ResidualCodecTest, ResidualInPlaceAndFirstClock) {
  constexpr size_t kCount = 1500;
  const std::vector<float> in = Gradients(kCount, 5, true);
  const std::vector<float> before = Gradients(kCount, 6, false);
  std::vector<float> next(kCount);
  std::vector<float> same = before;
  std::vector<std::byte> payload(codec_->EncodedBytes(kCount));
  std::vector<std::byte> again(payload.size());
  codec_->EncodeResidual(in.data(), kCount, 1, before.data(), next.data(), kIdentity,
                         payload.data());
  codec_->EncodeResidual(in.data(), kCount, 1, same.data(), same.data(), kIdentity, again.data());
  EXPECT_EQ(payload, again);
  EXPECT_TRUE(SameBits(next, same));

  const std::vector<float> zeros(kCount);
  codec_->EncodeResidual(in.data(), kCount, 1, zeros.data(), next.data(), kIdentity,
                         payload.data());
  codec_->EncodeResidual(in.data(), kCount, 1, nullptr, same.data(), kIdentity, again.data());
  EXPECT_EQ(payload, again);
  EXPECT_TRUE(SameBits(next, same));
}

// What was sent and what is left make up what came in, to rounding, over many clocks.
TEST_P(ResidualCodecTest, SentAndResidualAreTheGradients) {
  constexpr size_t kCount = 1100;
  constexpr int kClocks = 40;
  std::vector<float> residual(kCount);
  std::vector<double> wanted(kCount);
  std::vector<double> sent(kCount);
  std::vector<float> decoded(kCount);
  std::vector<std::byte> payload(codec_->EncodedBytes(kCount));
  double largest = 0;
  for (int clock = 0; clock < kClocks; ++clock) {
    std::vector<float> gradient = Gradients(kCount, 100 + static_cast<uint32_t>(clock), false);
    codec_->EncodeResidual(gradient.data(), kCount, 0.5f, residual.data(), residual.data(),
                           {.clock = clock}, payload.data());
    codec_->Decode(payload.data(), kCount, 1, decoded.data());
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] += 0.5 * static_cast<double>(gradient[i]);
      sent[i] += static_cast<double>(decoded[i]);
      largest = std::max(largest, std::fabs(static_cast<double>(residual[i])));
    }
  }
  const double tolerance = kClocks * (largest + 4) * std::ldexp(1.0, -24);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(sent[i] + static_cast<double>(residual[i]), wanted[i], tolerance) << i;
  }
}

// Exactly so for the codecs that select, on integers.
void ExpectSentAndResidualAreExact(const ResidualCodecOptions& options) {
  constexpr size_t kCount = 3000;
  const auto codec = Make(options);
  std::vector<float> residual(kCount);
  std::vector<float> wanted(kCount);
  std::vector<float> sent(kCount);
  std::vector<std::byte> payload(codec->EncodedBytes(kCount));
  std::mt19937 random(7);
  for (int clock = 0; clock < 100; ++clock) {
    std::vector<float> gradient(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      gradient[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
      wanted[i] += gradient[i];
    }
    codec->EncodeResidual(gradient.data(), kCount, 1, residual.data(), residual.data(),
                          {.clock = clock}, payload.data());
    codec->DecodeAdd(payload.data(), kCount, 1, sent.data());
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(sent[i] + residual[i], wanted[i]) << i;
  }
}

TEST(SelectingCodecTest, SentAndResidualAreTheGradientsExactly) {
  for (const char* name : {"topk", "randk"}) {
    for (const bool int8_values : {false, true}) {
      SCOPED_TRACE(name);
      ExpectSentAndResidualAreExact({.name = name, .fraction = 0.05, .int8_values = int8_values});
    }
  }
}

TEST_P(ResidualCodecTest, ClearSentZeroesWhatWasSelected) {
  constexpr size_t kCount = 1000;
  std::vector<float> in = Gradients(kCount, 13, false);
  for (float& value : in) value += value >= 0 ? 1.0f : -1.0f;  // None decodes to zero.
  std::vector<std::byte> payload(codec_->EncodedBytes(kCount));
  codec_->EncodeResidual(in.data(), kCount, 1, nullptr, nullptr, kIdentity, payload.data());
  std::vector<float> decoded(kCount);
  codec_->Decode(payload.data(), kCount, 1, decoded.data());
  std::vector<float> velocity(kCount, 5);
  codec_->ClearSent(payload.data(), kCount, velocity.data());
  for (size_t i = 0; i < kCount; ++i) {
    // A small value next to a large one may be coded as zero, but it was sent.
    if (decoded[i] != 0) {
      ASSERT_EQ(velocity[i], Selects() ? 0 : 5) << i;
    }
  }
  const auto sent = static_cast<size_t>(std::count(velocity.begin(), velocity.end(), 0.0f));
  EXPECT_EQ(sent, Selects() ? KeptValues(GetParam().options.fraction, kCount) : 0);
}

// The same identity gives the same bytes, another one others, if anything is random in the codec.
TEST_P(ResidualCodecTest, BytesAreAFunctionOfTheIdentity) {
  constexpr size_t kCount = 3000;
  const std::vector<float> in = Gradients(kCount, 14, false);
  const auto encode = [&](const EncodeIdentity& identity) {
    std::vector<std::byte> payload(codec_->EncodedBytes(kCount));
    codec_->EncodeResidual(in.data(), kCount, 1, nullptr, nullptr, identity, payload.data());
    return payload;
  };
  const std::vector<std::byte> payload = encode(kIdentity);
  EXPECT_EQ(encode(kIdentity), payload);
  const bool stochastic = GetParam().options.stochastic;
  const bool is_random = stochastic || codec_->id() == CodecId::kRandK;
  EXPECT_EQ(encode({.worker = 4, .clock = 70, .chunk = 11}) != payload, stochastic);
  EXPECT_EQ(encode({.worker = 3, .clock = 71, .chunk = 11}) != payload, is_random);
  EXPECT_EQ(encode({.worker = 3, .clock = 70, .chunk = 12}) != payload, is_random);
  EXPECT_EQ(encode({.worker = 3, .clock = 70, .chunk = 11, .part = 1}) != payload, is_random);
}

// Over many clocks the mean of what is decoded is the value: within five standard deviations of a
// mean of roundings that are uniform within a step at worst.
TEST(StochasticRoundingTest, IsUnbiased) {
  constexpr size_t kCount = 256;
  constexpr int kClocks = 4000;
  for (const char* name : {"int8", "int4"}) {
    const auto codec = Make({.name = name, .stochastic = true});
    const std::vector<float> in = Gradients(kCount, 15, false);
    const float largest = std::fabs(*std::max_element(
        in.begin(), in.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    const float step = largest / (codec->id() == CodecId::kInt8 ? 127 : 7);
    std::vector<float> sum(kCount);
    std::vector<std::byte> payload(codec->EncodedBytes(kCount));
    for (int clock = 0; clock < kClocks; ++clock) {
      codec->EncodeResidual(in.data(), kCount, 1, nullptr, nullptr, {.clock = clock},
                            payload.data());
      codec->DecodeAdd(payload.data(), kCount, 1, sum.data());
    }
    for (size_t i = 0; i < kCount; ++i) {
      const double mean = static_cast<double>(sum[i]) / kClocks;
      ASSERT_NEAR(mean, static_cast<double>(in[i]),
                  5 * static_cast<double>(step) / 2 / std::sqrt(kClocks))
          << name << " " << i;
    }
  }
}

// Without a residual, the mean over the choices is the value: that is what count / kept is for.
TEST(RandKCodecTest, IsUnbiasedWithoutErrorFeedback) {
  constexpr size_t kCount = 100;
  constexpr int kClocks = 20000;
  const auto codec = Make({.name = "randk", .fraction = 0.1, .error_feedback = false});
  const std::vector<float> in(kCount, 1.0f);
  std::vector<float> sum(kCount);
  std::vector<std::byte> payload(codec->EncodedBytes(kCount));
  for (int clock = 0; clock < kClocks; ++clock) {
    codec->EncodeResidual(in.data(), kCount, 1, nullptr, nullptr, {.clock = clock}, payload.data());
    codec->DecodeAdd(payload.data(), kCount, 1, sum.data());
  }
  // Ten with probability a tenth: a variance of 9.
  for (const float value : sum) EXPECT_NEAR(value / kClocks, 1, 5 * 3 / std::sqrt(kClocks));
}

// A worker's choices are those of all workers.
TEST(RandKCodecTest, WorkersShareTheirChoices) {
  constexpr size_t kCount = 500;
  const auto codec = Make({.name = "randk", .fraction = 0.1});
  std::vector<std::byte> payload(codec->EncodedBytes(kCount));
  std::vector<float> sum(kCount);
  for (uint32_t worker = 0; worker < 3; ++worker) {
    const std::vector<float> in(kCount, 1.0f);
    codec->EncodeResidual(in.data(), kCount, 1, nullptr, nullptr, {.worker = worker, .clock = 5},
                          payload.data());
    codec->DecodeAdd(payload.data(), kCount, 1, sum.data());
  }
  EXPECT_EQ(std::count(sum.begin(), sum.end(), 3.0f), 50);
  EXPECT_EQ(std::count(sum.begin(), sum.end(), 0.0f), 450);
}

// Large enough for the sample that spares work: it must not change what is selected. The values are
// in an order that misleads it (all large ones lie between the samples), and in one that does not.
TEST(TopKCodecTest, LargeInputsEqualReference) {
  constexpr size_t kCount = 70001;
  const auto codec = Make({.name = "topk", .fraction = 0.01});
  std::vector<float> ordinary = Gradients(kCount, 8, true);
  std::vector<float> hidden(kCount);
  std::vector<float> equal(kCount, -0.25f);
  for (size_t i = 0; i < kCount; ++i) {
    const bool is_sampled = i % (kCount / 128) < 8;
    hidden[i] = is_sampled ? 4.0f + static_cast<float>(i % 7) : ordinary[i] / 1024;
  }
  std::vector<float> next(kCount);
  std::vector<std::byte> payload(codec->EncodedBytes(kCount));
  ForEachSimdTarget([&] {
    for (const std::vector<float>* values : {&ordinary, &hidden, &equal}) {
      const std::vector<float> before = next;
      const reference::Encoded want =
          reference::EncodeTopK(701, ValueFormat::kFp16, *values, 1, before);
      codec->EncodeResidual(values->data(), kCount, 1, before.data(), next.data(), {},
                            payload.data());
      ASSERT_EQ(payload, want.payload);
      ASSERT_TRUE(SameBits(next, want.residual));
      codec->Encode(values->data(), kCount, 1, payload.data());
      ASSERT_EQ(payload, reference::EncodeTopK(701, ValueFormat::kFp16, *values, 1, {}).payload);
    }
  });
}

TEST_P(ResidualCodecTest, ErrorOfOneClockIsBounded) {
  constexpr size_t kCount = 2048;
  const std::vector<float> in = Gradients(kCount, 9, false);
  const reference::Encoded coded = Reference(in, 1, {}, {});
  double squares = 0;
  double lost = 0;
  for (size_t i = 0; i < kCount; ++i) {
    squares += std::pow(static_cast<double>(in[i]), 2);
    lost += std::pow(static_cast<double>(coded.residual[i]), 2);
  }
  const double relative = std::sqrt(lost / squares);
  // Each codec keeps more than nothing; those of 8 and 4 bits nearly all.
  const double bound = codec_->id() == CodecId::kInt8      ? 0.02
                       : codec_->id() == CodecId::kFp8E4M3 ? 0.04
                       : codec_->id() == CodecId::kFp8E5M2 ? 0.07
                       : codec_->id() == CodecId::kInt4    ? 0.25
                       : codec_->id() == CodecId::kOneBit  ? 0.75
                                                           : 1;
  EXPECT_LT(relative, bound);
}

TEST_P(ResidualCodecTest, ValidateRefusesDamagedHeadersAndSizes) {
  constexpr size_t kCount = 500;
  const std::vector<std::byte> good = Encode(Gradients(kCount, 10, false));
  ASSERT_TRUE(codec_->Validate(good, kCount).ok());
  for (size_t at = 0; at < 12; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> bad = good;
      bad[at] ^= std::byte{1} << bit;
      EXPECT_EQ(codec_->Validate(bad, kCount).code(), StatusCode::kInvalidArgument) << at;
    }
  }
  const ConstBytes bytes(good);
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(codec_->Validate(bytes.first(size), kCount).ok()) << size;
  }
  for (const size_t count : {size_t{0}, kCount - 1, kCount + 1, kMaxCodedValues + 1, SIZE_MAX}) {
    EXPECT_EQ(codec_->Validate(good, count).code(), StatusCode::kInvalidArgument) << count;
  }
}

TEST_P(ResidualCodecTest, ValidateRefusesBadScales) {
  constexpr size_t kCount = 500;
  const std::vector<std::byte> good = Encode(Gradients(kCount, 11, false));
  // The header's scale and the first block's; topk has no blocks, and values behind the header.
  const bool by_block = !Selects();
  for (const float bad : {kNan, kInfinity, -1.0f, std::nextafter(kLargestCoded, kInfinity), 3.0f}) {
    for (const size_t at : {size_t{12}, size_t{16}}) {
      if (at == 16 && (!by_block || bad == 3.0f)) continue;
      std::vector<std::byte> payload = good;
      std::memcpy(&payload[at], &bad, sizeof(bad));
      const Status status = codec_->Validate(payload, kCount);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad << " at " << at;
      EXPECT_THAT(status.message(), HasSubstr("scale")) << bad << " at " << at;
    }
  }
}

TEST(BlockCodecTest, ValidateRefusesBitsAfterTheLast) {
  for (const char* name : {"int4", "onebit"}) {
    const auto codec = Make({.name = name});
    const std::vector<float> in = Gradients(301, 12, false);
    std::vector<std::byte> payload(codec->EncodedBytes(301));
    codec->Encode(in.data(), 301, 1, payload.data());
    payload.back() |= std::byte{0x80};
    EXPECT_THAT(codec->Validate(payload, 301).message(), HasSubstr("bits after the last value"));
  }
}

TEST(BlockCodecTest, ValidateRefusesFloatsOf8BitsThatAreNotFinite) {
  const std::vector<float> in = Gradients(301, 16, false);
  const struct {
    const char* name;
    std::vector<uint8_t> bad;
    uint8_t largest;
  } cases[] = {{"fp8_e4m3", {0x7F, 0xFF}, 0xFE}, {"fp8_e5m2", {0x7C, 0x7D, 0x7F, 0xFC}, 0xFB}};
  for (const auto& c : cases) {
    const auto codec = Make({.name = c.name});
    std::vector<std::byte> payload(codec->EncodedBytes(301));
    codec->Encode(in.data(), 301, 1, payload.data());
    const size_t codes = payload.size() - 301;
    for (const size_t at : {0, 31, 32, 200, 300}) {
      std::vector<std::byte> bad = payload;
      bad[codes + at] = std::byte{c.largest};
      EXPECT_TRUE(codec->Validate(bad, 301).ok()) << c.name;
      for (const uint8_t value : c.bad) {
        bad[codes + at] = std::byte{value};
        EXPECT_THAT(codec->Validate(bad, 301).message(),
                    HasSubstr("not finite at index " + std::to_string(at) + " of 301"));
      }
    }
  }
}

TEST(TopKCodecTest, ValidateRefusesValuesAndIndices) {
  const auto codec = Make({.name = "topk", .fraction = 0.25});
  // Four of 16 are kept: 8 bytes of values, 1 of low bits (2 each), 1 of high ones (7 bits).
  std::vector<float> in(16);
  for (const size_t i : {1, 2, 3, 15}) in[i] = static_cast<float>(i);
  std::vector<std::byte> good(codec->EncodedBytes(16));
  codec->Encode(in.data(), 16, 1, good.data());
  ASSERT_EQ(good.size(), 26u);
  ASSERT_TRUE(codec->Validate(good, 16).ok());
  const auto refused_with = [&](size_t at, uint8_t value) {
    std::vector<std::byte> bad = good;
    bad[at] = std::byte{value};
    const Status status = codec->Validate(bad, 16);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  ASSERT_EQ(good[24], std::byte{0b11'11'10'01});
  ASSERT_EQ(good[25], std::byte{0b0100'0111});
  EXPECT_THAT(refused_with(19, 0x7C), HasSubstr("not finite at position 1 of 4"));
  EXPECT_THAT(refused_with(24, 0b11'10'11'01), HasSubstr("at position 2 of 4"));  // Not ascending.
  EXPECT_THAT(refused_with(24, 0b11'11'01'01), HasSubstr("at position 1 of 4"));  // Twice.
  EXPECT_THAT(refused_with(25, 0b1000'0111), HasSubstr("at position 3 of 4"));    // Beyond 16.
  EXPECT_THAT(refused_with(25, 0b0000'0111), HasSubstr("at position 3 of 4"));    // Missing.
  EXPECT_THAT(refused_with(25, 0b1100'0111), HasSubstr("bits left over, at position 4 of 4"));
}

TEST_P(ResidualCodecTest, ReplacesWhatDoesNotFit) {
  const std::vector<float> in = {kNan, 1.0f, kInfinity, 3e38f, -3e38f};
  const std::vector<float> residual = {0.5f, 0, 0, 0, 0};
  std::vector<float> next(in.size());
  std::vector<std::byte> payload(codec_->EncodedBytes(in.size()));
  const EncodeStats stats = codec_->EncodeResidual(in.data(), in.size(), 1, residual.data(),
                                                   next.data(), {}, payload.data());
  EXPECT_EQ(stats.non_finite, 2u);
  EXPECT_EQ(stats.saturated, 2u);
  EXPECT_TRUE(codec_->Validate(payload, in.size()).ok());
  std::vector<float> decoded(in.size());
  codec_->Decode(payload.data(), in.size(), 1, decoded.data());
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(std::isfinite(decoded[i]) && std::isfinite(next[i])) << i;
  }
}

// Blocks too small to have a scale are sent as zeros and kept.
TEST(BlockCodecTest, TinyBlocksStayInTheResidual) {
  const auto codec = Make({.name = "int8"});
  const std::vector<float> in(256, 1e-40f);
  std::vector<float> next(256);
  std::vector<float> decoded(256, 1);
  std::vector<std::byte> payload(codec->EncodedBytes(256));
  codec->EncodeResidual(in.data(), 256, 1, nullptr, next.data(), {}, payload.data());
  codec->Decode(payload.data(), 256, 1, decoded.data());
  EXPECT_EQ(decoded, std::vector<float>(256, 0.0f));
  EXPECT_EQ(next, in);
}

TEST(ResidualCodecFactoryTest, SizesAreThoseOfTheFormats) {
  constexpr size_t kChunk = 262144;
  EXPECT_EQ(Make({.name = "int8"})->EncodedBytes(kChunk), 16 + 4096 + kChunk);
  EXPECT_EQ(Make({.name = "int4"})->EncodedBytes(kChunk), 16 + 4096 + kChunk / 2);
  EXPECT_EQ(Make({.name = "onebit"})->EncodedBytes(kChunk), 16 + 1024 + kChunk / 8);
  // 2622 values of 2 bytes and 6 bits, and 2622 + 4095 bits.
  EXPECT_EQ(Make({.name = "topk"})->EncodedBytes(kChunk), 16 + 5244 + 1967 + 840);
  EXPECT_EQ(Make({.name = "topk"})->EncodedBytes(0), 16u);
  EXPECT_EQ(Make({.name = "int8"})->EncodedBytes(0), 16u);
}

TEST(ResidualCodecFactoryTest, RefusesBadOptions) {
  const auto refusal = [](const ResidualCodecOptions& options) {
    const auto codec = MakeResidualCodec(options);
    return codec ? Status() : codec.error();
  };
  EXPECT_THAT(refusal({.name = "fp16"}).message(), HasSubstr("expected one of int8, int4"));
  EXPECT_THAT(refusal({.name = "int8", .block = 100}).message(), HasSubstr("power of two"));
  EXPECT_THAT(refusal({.name = "int4", .block = 16}).message(), HasSubstr("from 32 to 4096"));
  EXPECT_THAT(refusal({.name = "onebit", .block = 8192}).message(), HasSubstr("from 32 to 4096"));
  EXPECT_THAT(refusal({.name = "topk", .block = 256}).message(), HasSubstr("no blocks"));
  EXPECT_THAT(refusal({.name = "onebit", .stochastic = true}).message(), HasSubstr("int8 or int4"));
  EXPECT_THAT(refusal({.name = "int8", .int8_values = true}).message(), HasSubstr("topk or randk"));
  for (const char* name : {"topk", "randk"}) {
    for (const double fraction : {0.0, -0.1, 1.01, std::nan("")}) {
      const Status status = refusal({.name = name, .fraction = fraction});
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("above 0 and at most 1"));
    }
  }
  // The shards serve dense codecs only, and flags name those.
  for (const char* name : {"int8", "int4", "fp8_e4m3", "fp8_e5m2", "onebit", "topk", "randk"}) {
    EXPECT_EQ(FindCodec(name), nullptr);
    EXPECT_EQ(FindCodec(Make({.name = name})->id()), nullptr);
    EXPECT_THAT(std::string(ResidualCodecNames()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace slackline
