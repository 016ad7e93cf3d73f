// The shard over real sockets: the consistency modes end to end, slow readers, and no copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/tcp_rig.h"

namespace slackline::server {
namespace {

using proto::ReplyStatus;
using testing::Each;

void FillGradient(RigWorker& worker, float value) {
  std::fill(worker.gradient.begin(), worker.gradient.end(), value);
}

TEST(ShardOverTcp, BspRounds) {
  constexpr uint32_t kWorkers = 3;
  constexpr uint32_t kChunks = 4;
  TcpRig rig(TestMap(TestJob(0), std::vector<size_t>(kChunks, 10'000)), kWorkers);
  rig.InitAll(0);
  for (Clock clock = 0; clock < 5; ++clock) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      std::vector<size_t> before;
      for (uint32_t w = 0; w < kWorkers; ++w) {
        before.push_back(rig.worker(w).replies);
        FillGradient(rig.worker(w), static_cast<float>(w + 1));
        rig.PushPull(rig.worker(w), chunk, clock);
      }
      for (uint32_t w = 0; w < kWorkers; ++w) {
        ASSERT_TRUE(rig.Pump([&] { return rig.worker(w).replies > before[w]; }));
        EXPECT_EQ(rig.worker(w).reply.status, ReplyStatus::kOk);
        EXPECT_EQ(rig.worker(w).reply.min_clock, clock);
        EXPECT_THAT(rig.worker(w).landing, Each(-2 * static_cast<float>(clock + 1)));
      }
    }
  }
  EXPECT_GT(rig.worker(0).taken, 0u);
  EXPECT_EQ(rig.server().stats().payload_bytes_copied, 0u);
  EXPECT_EQ(rig.worker(0).endpoint->stats().payload_bytes_copied, 0u);
}

TEST(ShardOverTcp, SspStopsTheFastWorkerAtTheBound) {
  constexpr Clock kBound = 2;
  TcpRig rig(TestMap(TestJob(kBound), {1000}), 2);
  rig.InitAll(0);
  RigWorker& fast = rig.worker(0);
  RigWorker& slow = rig.worker(1);
  for (Clock clock = 0; clock < kBound; ++clock) {
    const proto::WireHeader header = rig.PushPullHeader(fast, 0, clock);
    const proto::WireHeader reply =
        rig.Ask(fast, header, TcpRig::GradientBytes(fast, header.payload_bytes));
    EXPECT_EQ(reply.min_clock, kNoClock);
  }
  const size_t before = fast.replies;
  const size_t taken = fast.taken;
  rig.PushPull(fast, 0, kBound);
  ASSERT_TRUE(rig.Pump([&] { return fast.taken > taken; }));
  EXPECT_EQ(fast.replies, before);
  rig.PushPull(slow, 0, 0);
  ASSERT_TRUE(rig.Pump([&] { return fast.replies > before; }));
  EXPECT_EQ(fast.reply.min_clock, 0);
  EXPECT_EQ(fast.reply.clock - fast.reply.min_clock, kBound);
}

// True if the worker's landing memory holds exactly the version that the reply's header names:
// version 1 are the zeros, and each push of this test adds one.
bool HoldsItsVersion(const RigWorker& worker, const char* codec) {
  std::vector<float> weights(worker.landing.size());
  FindCodec(codec)->Decode(reinterpret_cast<const std::byte*>(worker.landing.data()),
                           weights.size(), 1, weights.data());
  const auto expected = static_cast<float>(worker.reply.version - 1);
  return std::all_of(weights.begin(), weights.end(),
                     [expected](float weight) { return weight == expected; });
}

// A worker that does not read leaves most of its reply with the shard: it must get the bytes of the
// version in the reply's header, whatever is applied meanwhile.
TEST(ShardOverTcp, ASlowReaderSeesOneVersion) {
  constexpr size_t kCount = 8 << 20;  // 32 MiB of fp32: more than the sockets' buffers hold.
  for (const char* codec : {"fp32", "bf16"}) {
    control::JobSpec job = TestJob(-1);
    job.set_pull_codec(codec);
    job.set_async_scale_sum(true);
    TcpRig rig(TestMap(job, {kCount}), 2);
    rig.InitAll(0);
    RigWorker& slow = rig.worker(0);
    RigWorker& fast = rig.worker(1);
    FillGradient(slow, -1);
    FillGradient(fast, -1);
    const size_t before = slow.replies;
    rig.PushPull(slow, 0, 0);
    ASSERT_TRUE(rig.Pump([&] { return rig.shard().Report().pushes() == 1; }));
    slow.paused = true;
    for (Clock clock = 0; clock < 3; ++clock) {
      const size_t seen = fast.replies;
      rig.PushPull(fast, 0, clock);
      ASSERT_TRUE(rig.Pump([&] { return fast.replies > seen; }));
      EXPECT_EQ(fast.reply.version, static_cast<uint64_t>(clock) + 3);
      ASSERT_TRUE(HoldsItsVersion(fast, codec)) << codec;
    }
    slow.paused = false;
    ASSERT_TRUE(rig.Pump([&] { return slow.replies > before; }));
    EXPECT_EQ(slow.reply.version, 2u);
    ASSERT_TRUE(HoldsItsVersion(slow, codec)) << codec;
  }
}

TEST(ShardOverTcp, AReconnectResendsAndIsNotCountedTwice) {
  TcpRig rig(TestMap(TestJob(0), {100}), 2);
  rig.InitAll(0);
  RigWorker& worker = rig.worker(0);
  FillGradient(worker, 2);
  FillGradient(rig.worker(1), 4);
  const size_t taken = worker.taken;
  rig.PushPull(worker, 0, 0);
  ASSERT_TRUE(rig.Pump([&] { return worker.taken > taken; }));
  worker.channel->Close();
  worker.open = false;
  rig.Connect(worker);
  const size_t before = worker.replies;
  rig.PushPull(worker, 0, 0);
  rig.PushPull(rig.worker(1), 0, 0);
  ASSERT_TRUE(rig.Pump([&] { return worker.replies > before; }));
  EXPECT_EQ(worker.reply.status, ReplyStatus::kDuplicate);
  EXPECT_THAT(worker.landing, Each(-3));
}

}  // namespace
}  // namespace slackline::server
