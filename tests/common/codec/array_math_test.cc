#include "common/codec/array_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

// Values of very different size, so that another order of additions gives other bits.
std::vector<float> Values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> mantissa(-2, 2);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(mantissa(random), static_cast<int>(random() % 24));
  }
  return values;
}

// The header's definition, by recursion: the sum of leaves [first, first + n) at one index.
float Tree(const std::vector<std::vector<float>>& leaves, size_t first, size_t n, size_t index) {
  if (n == 1) return leaves[first][index];
  const size_t left = std::bit_floor(n - 1);
  return Tree(leaves, first, left, index) + Tree(leaves, first + left, n - left, index);
}

TEST(ArrayMathTest, AddAndScaleEveryLength) {
  constexpr size_t kMost = 130;
  const std::vector<float> a = Values(kMost + 1, 1);
  const std::vector<float> b = Values(kMost + 1, 2);
  ForEachSimdTarget([&] {
    for (size_t count = 0; count <= kMost; ++count) {
      std::vector<float> sum = a;
      std::vector<float> scaled = a;
      AddArrays(sum.data() + 1, b.data() + 1, count);
      ScaleArray(scaled.data() + 1, count, 0.3f);
      for (size_t i = 0; i <= kMost; ++i) {
        const bool inside = i >= 1 && i < count + 1;
        ASSERT_EQ(sum[i], inside ? a[i] + b[i] : a[i]) << i << " of " << count;
        ASSERT_EQ(scaled[i], inside ? a[i] * 0.3f : a[i]) << i << " of " << count;
      }
    }
  });
}

TEST(ArrayMathTest, TreeSumIsTheTreeOfTheHeader) {
  constexpr size_t kCount = 67;
  for (size_t n = 1; n <= 20; ++n) {
    std::vector<std::vector<float>> leaves;
    for (uint32_t i = 0; i < n; ++i) leaves.push_back(Values(kCount, i));
    std::vector<std::vector<float>> work = leaves;
    std::vector<float*> pointers;
    for (std::vector<float>& leaf : work) pointers.push_back(leaf.data());
    TreeSum(pointers, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(work[0][i], Tree(leaves, 0, n, i)) << n << " leaves, index " << i;
    }
  }
}

// Two equal halves summed apart and then together: what makes W workers equal one with W times the
// micro-batches.
TEST(ArrayMathTest, TreeOfTreesIsTheTree) {
  constexpr size_t kCount = 67;
  std::vector<std::vector<float>> leaves;
  for (uint32_t i = 0; i < 8; ++i) leaves.push_back(Values(kCount, i));
  std::vector<std::vector<float>> parts = leaves;
  std::vector<float*> left;
  std::vector<float*> right;
  for (size_t i = 0; i < 8; ++i) (i < 4 ? left : right).push_back(parts[i].data());
  TreeSum(left, kCount);
  TreeSum(right, kCount);
  const std::vector<float*> halves = {left[0], right[0]};
  TreeSum(halves, kCount);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(parts[0][i], Tree(leaves, 0, 8, i));
}

TEST(ArrayMathTest, TreeSumOfNothingAndOfOne) {
  TreeSum({}, 5);
  std::vector<float> only = {1, 2, 3};
  const std::vector<float*> leaves = {only.data()};
  TreeSum(leaves, 3);
  EXPECT_EQ(only, (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace slackline
