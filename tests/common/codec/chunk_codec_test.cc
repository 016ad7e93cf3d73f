// The codec of a chunk: its parts, its sizes, and that nothing which is pushed is lost.
#include "common/codec/chunk_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/codec/momentum.h"
#include "common/random.h"

namespace slackline {
namespace {

using Kind = PayloadFault::Kind;

CodecPlan Plan(const CodecRule& rule) {
  Result<CodecPlan> plan = CodecPlan::Create(rule);
  EXPECT_TRUE(plan) << plan.error();
  return std::move(*plan);
}

// A matrix, two small tensors, another matrix: two coded parts around one of fp16, oddly long.
const std::vector<TensorPart> kParts = {{700, 700}, {20, 20}, {7, 7}, {301, 5000}};
constexpr size_t kCount = 700 + 20 + 7 + 301;

std::vector<float> Integers(Rng& rng) {
  std::vector<float> values(kCount);
  for (float& value : values) value = static_cast<float>(rng.Below(17)) - 8;
  return values;
}

TEST(ChunkCodecTest, ADenseCodecIsTheValuesEndToEnd) {
  for (const char* name : {"fp32", "fp16", "bf16"}) {
    const CodecPlan plan = Plan({.name = name, .min_elements = 100});
    const ChunkCodec codec(plan, kParts);
    EXPECT_EQ(codec.dense(), FindCodec(name));
    EXPECT_EQ(codec.id(), FindCodec(name)->id());
    EXPECT_EQ(codec.EncodedBytes(), FindCodec(name)->EncodedBytes(kCount));
  }
}

TEST(ChunkCodecTest, SmallTensorsTravelAsFp16) {
  const CodecPlan plan = Plan({.name = "int8", .min_elements = 100});
  const ChunkCodec small(plan, {{20, 20}, {7, 7}});
  EXPECT_EQ(small.dense(), FindCodec(CodecId::kFp16));
  EXPECT_EQ(small.EncodedBytes(), 2u * 27);
  const ChunkCodec mixed(plan, kParts);
  EXPECT_EQ(mixed.dense(), nullptr);
  EXPECT_EQ(mixed.id(), CodecId::kInt8);
  const ResidualCodec& int8 = plan.coded(0);
  EXPECT_EQ(mixed.EncodedBytes(), int8.EncodedBytes(700) + 2 * 27 + 2 + int8.EncodedBytes(301) + 3)
      << "each part, and the padding behind it";
}

TEST(ChunkCodecTest, AFractionWarmsUpByFours) {
  const CodecPlan plan = Plan({.name = "topk", .fraction = 0.01, .warmup_clocks = 30});
  ASSERT_EQ(plan.stage_count(), 4u) << "1/4, 1/16, 1/64 and 1/100";
  EXPECT_EQ(plan.StageOf(0), 0u);
  EXPECT_EQ(plan.StageOf(9), 0u);
  EXPECT_EQ(plan.StageOf(10), 1u);
  EXPECT_EQ(plan.StageOf(29), 2u);
  EXPECT_EQ(plan.StageOf(30), 3u);
  EXPECT_EQ(plan.StageOf(1'000'000), 3u);
  const ChunkCodec codec(plan, {{10'000, 10'000}});
  EXPECT_EQ(codec.EncodedBytes(0), codec.MaxEncodedBytes());
  EXPECT_GT(codec.EncodedBytes(0), 10 * codec.EncodedBytes(30));
}

TEST(ChunkCodecTest, WrongRulesAreRefusedByName) {
  const auto message = [](const CodecRule& rule) {
    Result<CodecPlan> plan = CodecPlan::Create(rule);
    return plan ? std::string() : plan.error().message();
  };
  EXPECT_NE(message({.name = "zip"}).find("codec 'zip': expected one of fp32"), std::string::npos);
  EXPECT_NE(message({.name = ""}).find("codec ''"), std::string::npos);
  EXPECT_NE(message({.name = "int8, int4"}).find("codec 'int8, int4'"), std::string::npos);
  EXPECT_NE(message({.name = "int8", .block = 100}).find("block is 100"), std::string::npos);
  EXPECT_NE(message({.name = "topk", .fraction = 0}).find("fraction is 0"), std::string::npos);
}

// What is sent and what is kept is what was pushed: exactly for codecs that select, on integers
// that fp16 holds; to rounding for the others. With pushes that are given up, and a loss scale.
TEST(ChunkCodecTest, NothingIsLost) {
  for (const char* name : {"int8", "int4", "onebit", "topk", "randk", "fp8_e4m3"}) {
    const std::string codec_name = name;
    const bool exact = codec_name == "topk" || codec_name == "randk";
    const CodecPlan plan =
        Plan({.name = codec_name, .fraction = 0.1, .warmup_clocks = 20, .min_elements = 100});
    const ChunkCodec codec(plan, kParts);
    Rng rng(7);
    std::vector<float> residual(kCount), sent(kCount), pushed(kCount);
    std::vector<std::byte> payload(codec.MaxEncodedBytes());
    for (Clock clock = 0; clock < 60; ++clock) {
      const float scale = clock % 2 == 0 ? 1.0F : 8.0F;
      std::vector<float> gradient = Integers(rng);
      for (size_t i = 0; i < kCount; ++i) {
        pushed[i] += gradient[i];
        gradient[i] *= scale;
      }
      const EncodeStats stats =
          codec.Encode(gradient.data(), scale, {.worker = 1, .clock = clock, .chunk = 2},
                       residual.data(), payload.data());
      EXPECT_EQ(stats.saturated + stats.non_finite, 0u);
      const ConstBytes bytes(payload.data(), codec.EncodedBytes(clock));
      ASSERT_EQ(codec.Validate(bytes, scale, clock).kind, Kind::kNone);
      if (clock % 7 == 3) {
        codec.TakeBack(payload.data(), scale, clock, residual.data());
      } else {
        codec.DecodeAdd(payload.data(), scale, clock, sent.data());
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      if (exact) {
        ASSERT_EQ(sent[i] + residual[i], pushed[i]) << name << " at " << i;
      } else {
        ASSERT_NEAR(sent[i] + residual[i], pushed[i], 2e-3) << name << " at " << i;
      }
    }
  }
}

// With momentum the small tensors' part is momentum SGD, and a coded one what
// common/codec/momentum.h makes of it, under a loss scale too.
TEST(ChunkCodecTest, MomentumIsThatOfEveryPart) {
  constexpr float kMomentum = 0.5F;  // A power of two: sums stay exact.
  const CodecPlan plan = Plan({.name = "topk", .fraction = 0.1, .min_elements = 100});
  const ChunkCodec codec(plan, kParts);
  const ResidualCodec& coded = plan.coded(0);
  const size_t large = kParts.front().count;
  const size_t small_end = large + kParts[1].count + kParts[2].count;
  Rng rng(9);
  std::vector<float> residual(kCount), velocity(kCount), sent(kCount);
  std::vector<float> want_residual(large), want_velocity(large), want_sent(large);
  std::vector<float> small_velocity(kCount), small_moved(kCount);
  std::vector<std::byte> payload(codec.MaxEncodedBytes()), part(coded.EncodedBytes(large));
  for (Clock clock = 0; clock < 8; ++clock) {
    const float scale = clock % 2 == 0 ? 1.0F : 8.0F;
    std::vector<float> gradient = Integers(rng);
    EncodeWithMomentum(coded, gradient.data(), large, 1, kMomentum,
                       {.velocity = want_velocity.data(),
                        .residual = want_residual.data(),
                        .next_velocity = want_velocity.data(),
                        .next_residual = want_residual.data()},
                       {.clock = clock}, part.data());
    coded.DecodeAdd(part.data(), large, 1, want_sent.data());
    for (size_t i = 0; i < kCount; ++i) {
      small_velocity[i] = kMomentum * small_velocity[i] + gradient[i];
      small_moved[i] += small_velocity[i];
      gradient[i] *= scale;
    }
    codec.EncodeWithMomentum(gradient.data(), scale, kMomentum, {.clock = clock}, residual.data(),
                             velocity.data(), payload.data());
    codec.DecodeAdd(payload.data(), scale, clock, sent.data());
  }
  for (size_t i = 0; i < large; ++i) {
    ASSERT_EQ(sent[i], want_sent[i]) << i;
    ASSERT_EQ(velocity[i], want_velocity[i]) << i;
  }
  for (size_t i = large; i < small_end; ++i) {
    ASSERT_EQ(velocity[i], small_velocity[i]) << i;
    ASSERT_NEAR(sent[i] + residual[i], small_moved[i], 1e-4) << i;
  }
}

TEST(ChunkCodecTest, DecodeSetsAndDecodeAddAdds) {
  const CodecPlan plan = Plan({.name = "onebit", .min_elements = 100});
  const ChunkCodec codec(plan, kParts);
  Rng rng(1);
  const std::vector<float> values = Integers(rng);
  std::vector<std::byte> payload(codec.EncodedBytes());
  codec.Encode(values.data(), 1, {}, nullptr, payload.data());
  std::vector<float> set(kCount, 5), added(kCount, 5);
  codec.Decode(payload.data(), 1, 0, set.data());
  codec.DecodeAdd(payload.data(), 1, 0, added.data());
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(added[i], set[i] + 5) << i;
}

TEST(ChunkCodecTest, BadBytesAreRefusedWithWhatIsWrong) {
  const CodecPlan plan = Plan({.name = "int8", .block = 64, .min_elements = 100});
  const ChunkCodec codec(plan, kParts);
  std::vector<float> values(kCount, 1);
  std::vector<std::byte> good(codec.EncodedBytes());
  codec.Encode(values.data(), 1, {}, nullptr, good.data());
  EXPECT_EQ(codec.Validate(good, 1, 0).kind, Kind::kNone);
  EXPECT_EQ(codec.Validate(ConstBytes(good).first(good.size() - 1), 1, 0).kind, Kind::kMalformed);

  const CodecPlan other = Plan({.name = "int8", .block = 128, .min_elements = 100});
  std::vector<std::byte> other_block(good.size());
  const ChunkCodec other_codec(other, kParts);
  other_block.resize(other_codec.EncodedBytes());
  other_codec.Encode(values.data(), 1, {}, nullptr, other_block.data());
  other_block.resize(good.size());
  EXPECT_EQ(codec.Validate(other_block, 1, 0).kind, Kind::kMalformed);

  // An infinity among the small tensors' fp16 values.
  const size_t fp16_at = plan.coded(0).EncodedBytes(700);
  std::vector<std::byte> infinite = good;
  infinite[fp16_at + 2 * 3] = std::byte{0x00};
  infinite[fp16_at + 2 * 3 + 1] = std::byte{0x7C};
  const PayloadFault fault = codec.Validate(infinite, 1, 0);
  EXPECT_EQ(fault.kind, Kind::kNotFinite);
  EXPECT_EQ(fault.element, 703u);
  // A loss scale below 1 makes a large value infinite: 1 / 1e-39 is out of range already.
  EXPECT_EQ(codec.Validate(good, 1e-30F, 0).kind, Kind::kNone);
  EXPECT_EQ(codec.Validate(good, 1e-39F, 0).kind, Kind::kNotFinite);

  std::vector<std::byte> padded = good;
  padded[fp16_at + 2 * 27] = std::byte{1};
  EXPECT_EQ(codec.Validate(padded, 1, 0).kind, Kind::kMalformed);
}

TEST(ChunkCodecTest, ANonFiniteGradientDoesNotPoisonTheResidual) {
  const CodecPlan plan = Plan({.name = "int4", .min_elements = 100});
  const ChunkCodec codec(plan, kParts);
  std::vector<float> values(kCount, 1);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[705] = std::numeric_limits<float>::infinity();
  std::vector<float> residual(kCount);
  std::vector<std::byte> payload(codec.EncodedBytes());
  EXPECT_EQ(codec.Encode(values.data(), 1, {}, residual.data(), payload.data()).non_finite, 2u);
  EXPECT_EQ(codec.Validate(payload, 1, 0).kind, Kind::kNone);
  for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace slackline
