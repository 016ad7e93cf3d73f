#include "common/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace slackline {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> Evaluate(const Permutation& permutation, uint64_t count) {
  std::vector<uint64_t> result;
  for (uint64_t i = 0; i < count; ++i) result.push_back(permutation(i));
  return result;
}

// The numbers are part of what a resumed job and another machine must reproduce: they may not
// change.
TEST(Mix64, EqualsPublishedSplitMix64) {
  constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15;
  constexpr uint64_t kSeed = 1234567;
  EXPECT_EQ(Mix64(kSeed + kIncrement), 6457827717110365317u);
  EXPECT_EQ(Mix64(kSeed + 2 * kIncrement), 3203168211198807973u);
  EXPECT_EQ(Mix64(kSeed + 3 * kIncrement), 9817491932198370423u);
}

TEST(Rng, SequenceIsPinned) {
  Rng rng(42);
  std::vector<uint64_t> values(5);
  for (uint64_t& value : values) value = rng.Next();
  EXPECT_THAT(values,
              ElementsAre(15021278609987233951u, 5881210131331364753u, 18149643915985481100u,
                          12933668939759105464u, 14637574242682825331u));
}

TEST(Rng, BelowIsUniformAndInRange) {
  Rng rng(1);
  constexpr uint64_t kBound = 7;
  constexpr int kDraws = 70'000;
  std::vector<int> counts(kBound);
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t value = rng.Below(kBound);
    ASSERT_LT(value, kBound);
    ++counts[value];
  }
  double chi_square = 0;
  constexpr double kExpected = static_cast<double>(kDraws) / kBound;
  for (const int count : counts)
    chi_square += (count - kExpected) * (count - kExpected) / kExpected;
  EXPECT_LT(chi_square, 22.5);  // The 99.9 % point of six degrees of freedom.
}

TEST(Rng, BelowHasNoBiasWhenTheBoundDoesNotDivide) {
  // With multiplication alone every third value would come from two of the 2^64 draws, the others
  // from one.
  Rng rng(2);
  constexpr uint64_t kBound = uint64_t{3} << 62;
  constexpr int kDraws = 30'000;
  std::vector<int> thirds(3);
  std::vector<int> residues(3);
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t value = rng.Below(kBound);
    ASSERT_LT(value, kBound);
    ++thirds[value >> 62];
    ++residues[value % 3];
  }
  for (const int count : thirds) EXPECT_NEAR(count, kDraws / 3, 500);
  for (const int count : residues) EXPECT_NEAR(count, kDraws / 3, 500);
}

TEST(Rng, UniformAndNormalHaveTheirMoments) {
  Rng rng(3);
  constexpr int kDraws = 100'000;
  double uniform_sum = 0;
  double normal_sum = 0;
  double normal_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double uniform = rng.Uniform();
    ASSERT_GE(uniform, 0);
    ASSERT_LT(uniform, 1);
    uniform_sum += uniform;
    const double normal = rng.Normal();
    normal_sum += normal;
    normal_squares += normal * normal;
  }
  // Five standard errors each.
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 0.0046);
  EXPECT_NEAR(normal_sum / kDraws, 0, 0.016);
  EXPECT_NEAR(normal_squares / kDraws, 1, 0.023);
}

TEST(Permutation, IsABijectionAtEverySize) {
  std::vector<uint64_t> sizes = {4096, 4097, 65'535, 65'536, 65'537, 100'003};
  for (uint64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    const Permutation permutation(size, size * 11);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << "size " << size << ", position " << i;
      seen[image] = true;
    }
  }
}

TEST(Permutation, IsPinned) {
  EXPECT_THAT(Evaluate(Permutation(10, 1), 10), ElementsAre(8, 6, 2, 7, 1, 3, 4, 5, 9, 0));
  EXPECT_THAT(Evaluate(Permutation(1000, 7), 8),
              ElementsAre(541, 800, 849, 721, 769, 591, 787, 934));
}

TEST(Permutation, SeedsGiveUnrelatedOrders) {
  constexpr uint64_t kSize = 10'000;
  const Permutation first(kSize, 1);
  const Permutation second(kSize, 2);
  int equal = 0;
  int neighbours = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    if (first(i) == second(i)) ++equal;
    if (first(i) + 1 == first(i + 1)) ++neighbours;
  }
  // One of each is expected of random orders.
  EXPECT_LT(equal, 10);
  EXPECT_LT(neighbours, 10);
}

TEST(Permutation, LargestSizeWorks) {
  constexpr uint64_t kSize = uint64_t{1} << 62;
  const Permutation permutation(kSize, 5);
  EXPECT_LT(permutation(kSize - 1), kSize);
  EXPECT_NE(permutation(0), permutation(1));
}

}  // namespace
}  // namespace slackline
