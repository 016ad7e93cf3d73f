// The I/O thread against real shards over TCP, without a coordinator: what crosses threads, and
// what the whole data path allocates and copies.
#include "worker/client/io_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/counting_allocator.h"
#include "tests/worker/test_shard.h"

namespace slackline::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kShards = 2;
constexpr uint32_t kChunks = 6;
constexpr uint32_t kChunkElements = 4096;
constexpr size_t kChunkBytes = kChunkElements * sizeof(float);

class IoLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> addresses;
    for (ShardIndex index = 0; index < kShards; ++index) {
      shards_.push_back(std::make_unique<TestShard>(index));
      addresses.push_back(shards_.back()->address());
    }
    control::View view;
    view.set_version(1);
    view.add_members()->set_incarnation(1);
    const control::ShardMap map = MakeTestMap(addresses, kChunks, kChunkElements);
    for (auto& shard : shards_) shard->Start(map, view);

    IoLoop::Options options;
    options.core.stall_report_ns = kNsPerSecond / 10;
    options.core.stall_timeout_ns = kNsPerSecond / 2;
    options.on_failed = [this](const Status&) { ++failures_; };
    auto loop = IoLoop::Create(std::move(options));
    ASSERT_TRUE(loop) << loop.error();
    loop_ = std::move(*loop);
    auto gradients = loop_->Allocate(kChunks * kChunkBytes);
    auto weights = loop_->Allocate(kChunks * kChunkBytes);
    ASSERT_TRUE(gradients && weights);
    gradients_ = std::move(*gradients);
    weights_ = std::move(*weights);
    std::ranges::fill(gradients_->bytes(), std::byte{0});
    std::ranges::fill(weights_->bytes(), std::byte{0});
    core_map_.shard_addresses = addresses;
    for (uint32_t k = 0; k < kChunks; ++k) core_map_.chunk_shard.push_back(k % kShards);
    loop_->Start(core_map_);
    const Status open = loop_->WaitOpen(10 * kNsPerSecond);
    ASSERT_TRUE(open.ok()) << open;
  }
  void TearDown() override {
    if (loop_) loop_->Stop();
    weights_.reset();
    gradients_.reset();
    loop_.reset();
  }

  void Submit(ChunkIndex chunk, proto::MessageKind kind, Clock clock) {
    const auto part = [&](transport::Region& region) {
      return region.bytes().subspan(chunk * kChunkBytes, kChunkBytes);
    };
    const bool init = kind == proto::MessageKind::kInit;
    loop_->Submit({.kind = kind,
                   .chunk = chunk,
                   .clock = clock,
                   .codec = CodecId::kFp32,
                   .reply_codec = CodecId::kFp32,
                   .weight = 1,
                   .payload = part(init ? *weights_ : *gradients_),
                   .landing = init ? MutableBytes{} : part(*weights_)});
  }
  // All chunks at once; the first error.
  Status Round(proto::MessageKind kind, Clock clock) {
    for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) Submit(chunk, kind, clock);
    Status first;
    for (ChunkIndex chunk = 0; chunk < kChunks; ++chunk) {
      ChunkResult result;
      Status status = loop_->Wait(chunk, &result);
      if (status.ok() && result.status != proto::ReplyStatus::kOk) status = Internal("refused");
      if (first.ok()) first = status;
    }
    return first;
  }
  float& Gradient(size_t i) { return reinterpret_cast<float*>(gradients_->bytes().data())[i]; }
  float Weight(size_t i) const { return reinterpret_cast<float*>(weights_->bytes().data())[i]; }

  std::vector<std::unique_ptr<TestShard>> shards_;
  CoreMap core_map_;
  std::atomic<int> failures_{0};
  std::unique_ptr<IoLoop> loop_;
  std::unique_ptr<transport::Region> gradients_, weights_;
};

TEST_F(IoLoopTest, TheWholeDataPathAllocatesAndCopiesNothing) {
  ASSERT_TRUE(Round(proto::MessageKind::kInit, 0).ok());
  for (size_t i = 0; i < kChunks * kChunkElements; ++i) Gradient(i) = 0.5F;
  Clock clock = 0;
  for (; clock < 20; ++clock) ASSERT_TRUE(Round(proto::MessageKind::kPushPull, clock).ok());
  // Every thread of this process: training, client-io, both shards.
  const uint64_t before = ProcessAllocations().allocations;
  bool ok = true;
  for (; clock < 220; ++clock) ok = Round(proto::MessageKind::kPushPull, clock).ok() && ok;
  EXPECT_EQ(ProcessAllocations().allocations, before);
  EXPECT_TRUE(ok);
  EXPECT_EQ(Weight(0), -110.0F);
  EXPECT_EQ(Weight(kChunks * kChunkElements - 1), -110.0F);
  loop_->Stop();
  EXPECT_EQ(loop_->endpoint_stats().payload_bytes_copied, 0U);
  EXPECT_GE(loop_->endpoint_stats().payload_bytes_sent, 220U * kChunks * kChunkBytes);
  for (auto& shard : shards_) {
    shard->Stop();
    EXPECT_EQ(shard->stats().payload_bytes_copied, 0U);
  }
}

TEST_F(IoLoopTest, EndDropsWhatIsOpenAndWhatComesLater) {
  ASSERT_TRUE(Round(proto::MessageKind::kInit, 0).ok());
  // A pull that BSP does not release: clock 5 was not reached.
  loop_->Submit({.kind = proto::MessageKind::kPull,
                 .chunk = 1,
                 .clock = 5,
                 .reply_codec = CodecId::kFp32,
                 .landing = weights_->bytes().first(kChunkBytes)});
  loop_->End(Aborted("enough"));
  ChunkResult result;
  EXPECT_EQ(loop_->Wait(1, &result), Aborted("enough"));
  EXPECT_EQ(Round(proto::MessageKind::kPushPull, 0), Aborted("enough"));
  EXPECT_EQ(failures_, 1);
}

TEST_F(IoLoopTest, AStallEndsWithItsReason) {
  ASSERT_TRUE(Round(proto::MessageKind::kInit, 0).ok());
  loop_->Submit({.kind = proto::MessageKind::kPull,
                 .chunk = 1,
                 .clock = 5,
                 .reply_codec = CodecId::kFp32,
                 .landing = weights_->bytes().first(kChunkBytes)});
  ChunkResult result;
  const Status status = loop_->Wait(1, &result);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("chunk 1 of shard 1"));
  EXPECT_THAT(status.message(), HasSubstr("weights are not released"));
}

TEST_F(IoLoopTest, AnUnreachableShardIsNamed) {
  CoreMap map = core_map_;
  map.epoch = 2;
  map.shard_addresses[1] = "tcp://127.0.0.1:1";  // Nobody listens there.
  ASSERT_TRUE(Round(proto::MessageKind::kInit, 0).ok());
  loop_->Update(map);
  // A pull that BSP does not release, whichever map it meets first.
  loop_->Submit({.kind = proto::MessageKind::kPull,
                 .chunk = 1,
                 .clock = 5,
                 .reply_codec = CodecId::kFp32,
                 .landing = weights_->bytes().first(kChunkBytes)});
  ChunkResult result;
  const Status status = loop_->Wait(1, &result);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("shard 1 (tcp://127.0.0.1:1)"));
}

}  // namespace
}  // namespace slackline::worker
