#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/random.h"
#include "worker/precision/gradient_check.h"
#include "worker/precision/loss_scaler.h"
#include "worker/precision/tree_accumulator.h"

namespace slackline::worker {
namespace {

using ::testing::HasSubstr;

TEST(LossScalerTest, HalvesAtOverflowAndDoublesAfterARun) {
  LossScaler scaler({.initial = 16, .min = 4, .max = 32, .backoff = 0.5, .growth_interval = 3});
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32);
  for (int i = 0; i < 3; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32) << "the maximum";
  scaler.Update(false);
  scaler.Update(false);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 16) << "an overflow starts the run again";
  for (int i = 0; i < 5; ++i) scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 4) << "the minimum";
  EXPECT_EQ(scaler.overflows(), 6u);
}

TEST(LossScalerTest, FixedScaleStays) {
  LossScaler scaler({.initial = 8, .min = 1, .max = 16, .backoff = 0.5, .growth_interval = 0});
  scaler.Update(true);
  for (int i = 0; i < 1000; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScalerTest, RefusesWhatIsNotAPowerOfTwoOrOutOfOrder) {
  EXPECT_TRUE(ValidateLossScale({}).ok());
  EXPECT_THAT(ValidateLossScale({.initial = 1000}).message(), HasSubstr("initial = 1000"));
  EXPECT_THAT(ValidateLossScale({.initial = -2}).message(), HasSubstr("initial"));
  EXPECT_THAT(ValidateLossScale({.initial = std::nan("")}).message(), HasSubstr("initial"));
  EXPECT_THAT(ValidateLossScale({.initial = 2, .min = 4}).message(), HasSubstr("min = 4"));
  EXPECT_THAT(ValidateLossScale({.initial = 8, .max = 4}).message(), HasSubstr("max = 4"));
  EXPECT_THAT(ValidateLossScale({.backoff = 1}).message(), HasSubstr("backoff"));
  EXPECT_THAT(ValidateLossScale({.growth_interval = -1}).message(), HasSubstr("growth"));
}

TEST(GradientCheckTest, NormMaximumAndFiniteness) {
  for (const size_t count : {0u, 1u, 7u, 8u, 9u, 100u}) {
    std::vector<float> values(count);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      values[i] = (i % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(i + 1);
      sum += double{values[i]} * double{values[i]};
    }
    const GradientCheck check = CheckGradient(values);
    EXPECT_TRUE(check.finite);
    EXPECT_EQ(check.max_abs, static_cast<float>(count));
    EXPECT_DOUBLE_EQ(check.sum_squares, sum);
    for (size_t i = 0; i < count; ++i) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> damaged = values;
        damaged[i] = bad;
        EXPECT_FALSE(CheckGradient(damaged).finite) << i << " of " << count;
      }
    }
  }
}

TEST(GradientCheckTest, SaturationIsAnOverflowOfFp16Only) {
  const std::vector<float> large{65504.0f, -70000.0f}, fits{-65504.0f};
  EXPECT_FALSE(FitsCodec(CheckGradient(large), CodecId::kFp16));
  EXPECT_TRUE(FitsCodec(CheckGradient(large), CodecId::kBf16));
  EXPECT_TRUE(FitsCodec(CheckGradient(large), CodecId::kFp32));
  EXPECT_TRUE(FitsCodec(CheckGradient(fits), CodecId::kFp16));
  const std::vector<float> largest{std::numeric_limits<float>::max()};
  EXPECT_FALSE(FitsCodec(CheckGradient(largest), CodecId::kBf16));
  EXPECT_TRUE(FitsCodec(CheckGradient(largest), CodecId::kFp32));
}

TEST(GradientCheckTest, CodecsAgreeAboutWhatFits) {
  for (const CodecId id : {CodecId::kFp16, CodecId::kBf16}) {
    const float edge = id == CodecId::kFp16 ? 65504.0f : 3.3895314e38f;
    for (const float value : {edge, std::nextafter(edge, std::numeric_limits<float>::infinity())}) {
      const std::vector<float> one{value};
      std::vector<uint32_t> out(1);
      const EncodeStats stats =
          FindCodec(id)->Encode(one.data(), 1, 1, reinterpret_cast<std::byte*>(out.data()));
      // The check may only be the stricter one.
      if (FitsCodec(CheckGradient(one), id)) {
        EXPECT_EQ(stats.saturated, 0u) << value;
      }
    }
  }
}

TEST(GradientCheckTest, ClipFactor) {
  EXPECT_EQ(ClipFactor(4, 1), 0.25f);
  EXPECT_EQ(ClipFactor(1, 1), 1.0f);
  EXPECT_EQ(ClipFactor(100, 0), 1.0f);
}

// The tree of the contract, written as its definition.
float Tree(std::span<const float> leaves) {
  if (leaves.size() == 1) return leaves[0];
  size_t left = 1;
  while (left * 2 < leaves.size()) left *= 2;
  return Tree(leaves.first(left)) + Tree(leaves.subspan(left));
}

TEST(TreeAccumulatorTest, SumsInTheTreeBitForBit) {
  Rng rng(3);
  for (size_t leaves = 1; leaves <= 33; ++leaves) {
    constexpr size_t kCount = 5;
    TreeAccumulator tree(leaves, kCount);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<float>> values(leaves, std::vector<float>(kCount));
      for (auto& leaf : values) {
        // Magnitudes far apart, so that any other order rounds differently somewhere.
        for (float& v : leaf) v = static_cast<float>(rng.Normal() * std::exp(6 * rng.Normal()));
      }
      for (size_t i = 0; i + 1 < leaves; ++i) tree.AddLeaf(values[i], 1);
      std::vector<float> sum = values.back();
      tree.FinishPart(std::span(sum).subspan(3), 3, 1);
      tree.FinishPart(std::span(sum).first(3), 0, 1);
      tree.Reset();
      for (size_t i = 0; i < kCount; ++i) {
        std::vector<float> column;
        for (const auto& leaf : values) column.push_back(leaf[i]);
        EXPECT_EQ(sum[i], Tree(column)) << leaves << " leaves";
      }
    }
  }
}

TEST(TreeAccumulatorTest, OneWorkersTreeIsThatOfManyWorkers) {
  Rng rng(4);
  std::vector<float> leaves(8);
  for (float& v : leaves) v = static_cast<float>(rng.Normal());
  const auto sum_of = [](std::span<const float> values) {
    TreeAccumulator tree(values.size(), 1);
    for (size_t i = 0; i + 1 < values.size(); ++i) tree.AddLeaf(values.subspan(i, 1), 1);
    float last = values.back();
    tree.FinishPart({&last, 1}, 0, 1);
    return last;
  };
  std::vector<float> ranks;
  for (size_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(sum_of(std::span<const float>(leaves).subspan(2 * rank, 2)));
  }
  EXPECT_EQ(sum_of(ranks), sum_of(leaves));
}

TEST(TreeAccumulatorTest, EachLeafHasItsFactor) {
  TreeAccumulator tree(3, 1);
  const std::vector<float> one{1.0f};
  tree.AddLeaf(one, 2);
  tree.AddLeaf(one, 4);
  std::vector<float> last{1.0f};
  tree.FinishPart(last, 0, 8);
  EXPECT_EQ(last[0], 14);
}

}  // namespace
}  // namespace slackline::worker
