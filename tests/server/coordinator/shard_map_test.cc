#include "server/coordinator/shard_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/random.h"
#include "server/coordinator/limits.h"
#include "tests/server/coordinator/cluster.h"

namespace slackline::server::coordinator {
namespace {

Tensors RandomModel(Rng* rng) {
  Tensors tensors;
  const uint64_t count = 1 + rng->Below(20);
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<int64_t> shape;
    const uint64_t rank = rng->Below(4);
    for (uint64_t d = 0; d < rank; ++d) shape.push_back(1 + static_cast<int64_t>(rng->Below(60)));
    *tensors.Add() = Tensor("t" + std::to_string(i), shape);
  }
  return tensors;
}

TEST(ShardMap, EveryElementIsInOneChunkAndOneSegment) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const Tensors tensors = RandomModel(&rng);
    const uint32_t chunk_bytes = kMinChunkBytes << rng.Below(5);
    const auto chunks = CutIntoChunks(tensors, chunk_bytes);
    ASSERT_TRUE(chunks.has_value());
    ASSERT_TRUE(CheckLayout(tensors, *chunks).ok()) << CheckLayout(tensors, *chunks);
    for (const control::Chunk& chunk : *chunks) ASSERT_LE(chunk.count() * 4, chunk_bytes);
  }
}

TEST(ShardMap, CutsBetweenRowsWhereARowFits) {
  Rng rng(2);
  for (int round = 0; round < 300; ++round) {
    const Tensors tensors = RandomModel(&rng);
    const auto chunks = CutIntoChunks(tensors, kMinChunkBytes);
    ASSERT_TRUE(chunks.has_value());
    for (const control::Chunk& chunk : *chunks) {
      for (const control::Segment& segment : chunk.segments()) {
        const control::TensorSpec& tensor = tensors[static_cast<int>(segment.tensor())];
        const uint64_t count = ElementCount(tensor);
        if (count * 4 <= kMinChunkBytes) {
          EXPECT_EQ(segment.count(), count) << "a small tensor is not cut";
          continue;
        }
        const uint64_t row = count / static_cast<uint64_t>(tensor.shape(0));
        if (row * 4 > kMinChunkBytes) continue;
        EXPECT_EQ(segment.tensor_offset() % row, 0u);
        EXPECT_EQ(segment.count() % row, 0u);
      }
    }
  }
}

TEST(ShardMap, ARowLargerThanAChunkIsCutEvenlyInsideAndAtItsEnd) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {2, 600});  // A chunk holds 256.
  const auto chunks = CutIntoChunks(tensors, 1024);
  ASSERT_EQ(chunks->size(), 6u);
  for (const control::Chunk& chunk : *chunks) EXPECT_EQ(chunk.count(), 200u);
}

TEST(ShardMap, SmallTensorsShareAChunkAndFillTheEndOfALargeOne) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {384});  // 192 and 192.
  *tensors.Add() = Tensor("b", {16});
  *tensors.Add() = Tensor("scalar", {});
  const auto chunks = CutIntoChunks(tensors, 1024);
  ASSERT_EQ(chunks->size(), 2u);
  EXPECT_EQ((*chunks)[1].segments_size(), 3);
  EXPECT_EQ((*chunks)[1].count(), 192u + 16 + 1);
}

TEST(ShardMap, ASmallModelIsCutFinerSoThatEveryShardHasAChunk) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {8, 4});
  *tensors.Add() = Tensor("b", {4});
  for (uint32_t shards = 1; shards <= 36; ++shards) {
    auto chunks = CutForShards(tensors, 1024, shards);
    ASSERT_TRUE(chunks.has_value());
    ASSERT_TRUE(CheckLayout(tensors, *chunks).ok());
    AssignToShards(shards, &*chunks);
    std::set<uint32_t> used;
    for (const control::Chunk& chunk : *chunks) used.insert(chunk.shard());
    EXPECT_EQ(used.size(), shards);
  }
  EXPECT_FALSE(CutForShards(tensors, 1024, 37).has_value());
}

TEST(ShardMap, TooManyChunksNameAChunkSizeThatDoes) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {int64_t{1} << 30});
  const auto chunks = CutIntoChunks(tensors, 1024);
  ASSERT_FALSE(chunks.has_value());
  EXPECT_EQ(chunks.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(chunks.error().message(), testing::HasSubstr("choose at least 32768"));
  EXPECT_TRUE(CutIntoChunks(tensors, 32768).has_value());
}

TEST(ShardMap, AHugeModelOfTinyRowsIsCutInBound) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {int64_t{1} << 19, 1 << 10, 1 << 9});  // kMaxElements.
  EXPECT_FALSE(CutIntoChunks(tensors, kMinChunkBytes).has_value());
  EXPECT_TRUE(CutIntoChunks(tensors, 64u << 20).has_value());
}

TEST(ShardMap, LoadsDifferByAtMostOneChunk) {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    auto chunks = *CutIntoChunks(RandomModel(&rng), kMinChunkBytes);
    const auto shards = static_cast<uint32_t>(1 + rng.Below(9));
    AssignToShards(shards, &chunks);
    std::vector<uint64_t> load(shards, 0);
    uint64_t largest = 0;
    for (const control::Chunk& chunk : chunks) {
      ASSERT_LT(chunk.shard(), shards);
      load[chunk.shard()] += chunk.count();
      largest = std::max<uint64_t>(largest, chunk.count());
    }
    const auto [low, high] = std::minmax_element(load.begin(), load.end());
    EXPECT_LE(*high - *low, largest);
  }
}

TEST(ShardMap, ALayoutThatDoesNotFitIsRefused) {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {600});
  const auto good = *CutIntoChunks(tensors, 1024);
  ASSERT_EQ(good.size(), 3u);
  auto chunks = good;
  chunks.pop_back();
  EXPECT_EQ(CheckLayout(tensors, chunks).code(), StatusCode::kDataLoss);
  chunks = good;
  std::swap(chunks[0], chunks[1]);
  EXPECT_FALSE(CheckLayout(tensors, chunks).ok());
  chunks = good;
  chunks[1].mutable_segments(0)->set_tensor_offset(0);
  EXPECT_FALSE(CheckLayout(tensors, chunks).ok());
  chunks = good;
  chunks[2].mutable_segments(0)->set_count(UINT64_MAX);
  EXPECT_FALSE(CheckLayout(tensors, chunks).ok());
  chunks = good;
  chunks[2].mutable_segments(0)->set_tensor(9);
  EXPECT_FALSE(CheckLayout(tensors, chunks).ok());
}

}  // namespace
}  // namespace slackline::server::coordinator
