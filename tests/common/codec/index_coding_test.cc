#include "common/codec/index_coding.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace slackline {
namespace {

constexpr std::byte kGuard{0xA5};

std::vector<uint32_t> RandomIndices(size_t count, size_t kept, uint32_t seed) {
  std::mt19937 random(seed);
  std::set<uint32_t> indices;
  while (indices.size() < kept) indices.insert(static_cast<uint32_t>(random() % count));
  return {indices.begin(), indices.end()};
}

void ExpectRoundTrip(size_t count, const std::vector<uint32_t>& indices) {
  const IndexLayout layout(count, indices.size());
  std::vector<std::byte> bytes(layout.bytes + 1, kGuard);
  IndexWriter writer(layout, bytes.data());
  for (const uint32_t index : indices) writer.Add(index);
  ASSERT_EQ(bytes.back(), kGuard);
  bytes.pop_back();
  size_t position = 0;
  EXPECT_TRUE(IndicesAreValid(layout, bytes.data(), &position)) << position;
  IndexReader reader(layout, bytes.data());
  std::vector<uint32_t> read;
  for (uint32_t index = 0; reader.Next(&index);) read.push_back(index);
  EXPECT_EQ(read, indices);
}

TEST(IndexCodingTest, EveryChoiceOfAFew) {
  constexpr size_t kMost = 9;
  for (size_t count = 0; count <= kMost; ++count) {
    for (uint32_t chosen = 0; chosen < 1u << count; ++chosen) {
      std::vector<uint32_t> indices;
      for (uint32_t i = 0; i < count; ++i) {
        if ((chosen >> i & 1) != 0) indices.push_back(i);
      }
      ExpectRoundTrip(count, indices);
    }
  }
}

TEST(IndexCodingTest, ManySizes) {
  uint32_t seed = 1;
  for (const size_t count : {100, 1023, 1024, 1025, 262144, 1 << 28}) {
    for (const size_t kept : {1, 2, 7, 50, 99}) {
      ExpectRoundTrip(count, RandomIndices(count, kept, ++seed));
    }
    // The first and the last, far apart.
    ExpectRoundTrip(count, {0, static_cast<uint32_t>(count - 1)});
    ExpectRoundTrip(count, {static_cast<uint32_t>(count - 1)});
  }
}

TEST(IndexCodingTest, AboutOneByteAnIndexAtOnePercent) {
  const IndexLayout layout(262144, 2622);
  EXPECT_EQ(layout.low_bits, 6u);
  EXPECT_LT(static_cast<double>(layout.bytes), 1.08 * 2622);
}

// Whatever the bytes, the reader stays inside them, ends, and a list that is accepted is ascending
// and below the count, and no other bytes mean the same list.
TEST(IndexCodingTest, AnyBytes) {
  std::mt19937 random(3);
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t count = 1 + random() % 12;
    const size_t kept = random() % (count + 1);
    const IndexLayout layout(count, kept);
    std::vector<std::byte> bytes(layout.bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & random() & 0xFF);
    IndexReader reader(layout, bytes.data());
    std::vector<uint32_t> read;
    for (uint32_t index = 0; reader.Next(&index);) read.push_back(index);
    ASSERT_LE(read.size(), kept);
    size_t position = 0;
    if (!IndicesAreValid(layout, bytes.data(), &position)) continue;
    ++accepted;
    ASSERT_EQ(read.size(), kept);
    std::vector<std::byte> again(layout.bytes);
    IndexWriter writer(layout, again.data());
    for (size_t i = 0; i < kept; ++i) {
      ASSERT_LT(read[i], count);
      if (i > 0) {
        ASSERT_LT(read[i - 1], read[i]);
      }
      writer.Add(read[i]);
    }
    ASSERT_EQ(again, bytes);
  }
  EXPECT_GT(accepted, 1000u);
}

}  // namespace
}  // namespace slackline
