// A shard's behaviour towards well-meaning workers, step by step.
#include "server/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/codec/array_math.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

using proto::ReplyStatus;
using testing::Each;
using testing::ElementsAre;

TEST(ShardBsp, AppliesTheWeightedMeanOnceWhenAllHavePushed) {
  ShardHarness t(TestMap(TestJob(0), {2}), 3);
  ASSERT_TRUE(t.install_status.ok()) << t.install_status;
  t.InitAll(10);
  const uint64_t a = t.PushPull(0, 0, 0, {1, 2}, 1);
  const uint64_t b = t.PushPull(1, 0, 0, {3, 4}, 1);
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  EXPECT_TRUE(t.Taken(0, a));  // Its credit returns before the round is complete.
  EXPECT_TRUE(t.Taken(1, b));
  EXPECT_THAT(t.Weights(0), Each(10));
  const uint64_t c = t.PushPull(2, 0, 0, {4, 6}, 2);
  EXPECT_FALSE(t.Taken(2, c));  // Answered in the same call.
  EXPECT_THAT(t.Weights(0), ElementsAre(10 - 8 / 4.0f, 10 - 12 / 4.0f));
  for (uint32_t worker = 0; worker < 3; ++worker) {
    const FakeReply& reply = t.channel(worker).replies.back();
    EXPECT_EQ(reply.header.status, ReplyStatus::kOk);
    EXPECT_EQ(reply.header.min_clock, 0);
    EXPECT_EQ(reply.header.version, 2u);
    EXPECT_THAT(reply.Floats(), ElementsAre(8, 7));
  }
}

TEST(ShardBsp, DividesByTheLossScale) {
  ShardHarness t(TestMap(TestJob(0), {1}), 1);
  t.InitAll(0);
  proto::WireHeader header = t.Header(proto::MessageKind::kPushPull, 0, 0, 0);
  header.codec = CodecId::kFp32;
  header.scale = 1024;
  header.weight = 4;
  header.payload_bytes = 4;
  const std::vector<float> gradient{2 * 4 * 1024};
  t.channel(0).Arrive(header, ShardHarness::BytesOf(gradient));
  EXPECT_THAT(t.Weights(0), ElementsAre(-2));
}

TEST(ShardBsp, EmptyPushesMoveTheClockOnly) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(5);
  t.EmptyPushPull(0, 0, 0);
  const uint64_t b = t.EmptyPushPull(1, 0, 0);
  ASSERT_NE(t.ReplyTo(1, b), nullptr);
  EXPECT_EQ(t.ReplyTo(1, b)->header.version, 1u);  // No step.
  EXPECT_THAT(t.Weights(0), ElementsAre(5));
  t.SendAll();
  // One of two: the mean is over the weight that came.
  t.EmptyPushPull(0, 0, 1);
  t.PushPull(1, 0, 1, {4}, 2);
  EXPECT_THAT(t.Weights(0), ElementsAre(3));
  t.SendAll();
  // The same with the empty one last.
  t.PushPull(0, 0, 2, {4}, 2);
  t.EmptyPushPull(1, 0, 2);
  EXPECT_THAT(t.Weights(0), ElementsAre(1));
}

TEST(ShardBsp, ADeadWorkerDoesNotHoldTheRound) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(0);
  const uint64_t a = t.PushPull(0, 0, 0, {1});
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}})).ok());
  ASSERT_NE(t.ReplyTo(0, a), nullptr);
  EXPECT_THAT(t.Weights(0), ElementsAre(-1));
  // What the dead worker still sends is refused.
  const uint64_t b = t.PushPull(1, 0, 0, {7});
  ASSERT_NE(t.ReplyTo(1, b), nullptr);
  EXPECT_EQ(t.ReplyTo(1, b)->header.status, ReplyStatus::kNotInView);
  EXPECT_THAT(t.Weights(0), ElementsAre(-1));
  EXPECT_EQ(t.shard->Report().view_version(), 2u);
}

TEST(ShardBsp, PullsOfTheRemovedAreRefused) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(0);
  const uint64_t b = t.PushPull(1, 0, 0, {7});
  ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}})).ok());
  ASSERT_NE(t.ReplyTo(1, b), nullptr);
  EXPECT_EQ(t.ReplyTo(1, b)->header.status, ReplyStatus::kNotInView);
}

TEST(ShardBsp, ADuplicateIsNotAddedTwiceAndGetsWeights) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(0);
  t.PushPull(0, 0, 0, {1});
  // The worker reconnects and resends.
  t.Reconnect(0);
  const uint64_t again = t.PushPull(0, 0, 0, {1});
  EXPECT_TRUE(t.Taken(0, again));
  EXPECT_EQ(t.ReplyTo(0, again), nullptr);
  t.PushPull(1, 0, 0, {3});
  ASSERT_NE(t.ReplyTo(0, again), nullptr);
  EXPECT_EQ(t.ReplyTo(0, again)->header.status, ReplyStatus::kDuplicate);
  EXPECT_THAT(t.ReplyTo(0, again)->Floats(), ElementsAre(-2));
}

TEST(ShardBsp, DeterministicSumsInTheTreeWhateverTheOrderOfArrival) {
  constexpr uint32_t kWorkers = 5;
  const std::vector<float> values{1e8f, 1.25f, -1e8f, 3.5f, 1e-3f};
  control::JobSpec job = TestJob(0);
  job.set_deterministic(true);
  std::vector<float> leaves = values;
  std::vector<float*> pointers;
  for (float& leaf : leaves) pointers.push_back(&leaf);
  TreeSum(pointers, 1);
  const float expected = -(leaves[0] / kWorkers);
  for (const std::vector<uint32_t>& order :
       {std::vector<uint32_t>{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}}) {
    ShardHarness t(TestMap(job, {1}), kWorkers);
    t.InitAll(0);
    for (uint32_t worker : order) t.PushPull(worker, 0, 0, {values[worker]});
    EXPECT_EQ(t.Weights(0)[0], expected);
  }
}

TEST(ShardBsp, DeterministicWorkersEqualOneThatAccumulates) {
  constexpr uint32_t kWorkers = 3;
  const std::vector<float> values{0.1f, 0.7f, -0.3f};
  control::JobSpec job = TestJob(0);
  job.set_deterministic(true);
  job.mutable_optimizer()->set_name("adamw");
  job.mutable_optimizer()->set_weight_decay(0.1);
  ShardHarness many(TestMap(job, {1, 1}), kWorkers);
  ShardHarness one(TestMap(job, {1, 1}), 1);
  many.InitAll(0.5f);
  one.InitAll(0.5f);
  for (Clock clock = 0; clock < 20; ++clock) {
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      std::vector<float> leaves = values;
      for (float& leaf : leaves) leaf *= many.Weights(chunk)[0];
      for (uint32_t worker = kWorkers; worker > 0; --worker) {
        many.PushPull(worker - 1, chunk, clock, {leaves[worker - 1]}, 8);
        many.channel(worker - 1).SendAll();
      }
      std::vector<float*> pointers;
      for (float& leaf : leaves) pointers.push_back(&leaf);
      TreeSum(pointers, 1);
      one.PushPull(0, chunk, clock, {leaves[0]}, 8 * kWorkers);
      one.channel(0).SendAll();
    }
    ASSERT_EQ(many.Weights(0), one.Weights(0)) << clock;
    ASSERT_EQ(many.Weights(1), one.Weights(1)) << clock;
  }
}

TEST(ShardBsp, EarlyPushesWaitForTheirRound) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(0);
  // Plain pushes do not wait for weights, so the second is ahead of its round.
  auto push = [&t](WorkerId worker, Clock clock, const std::vector<float>& gradient) {
    proto::WireHeader header = t.Header(proto::MessageKind::kPush, worker, 0, clock);
    header.codec = CodecId::kFp32;
    header.payload_bytes = static_cast<uint32_t>(gradient.size() * 4);
    t.channel(worker).Arrive(header, ShardHarness::BytesOf(gradient));
    return header.request_id;
  };
  const std::vector<float> g1{1}, g2{2}, g4{4};
  push(0, 0, g1);
  const uint64_t early = push(0, 1, g2);
  EXPECT_TRUE(t.Taken(0, early));
  EXPECT_EQ(t.ReplyTo(0, early), nullptr);
  // Another one of the same life cannot be judged before it.
  const uint64_t too_early = push(0, 2, g4);
  ASSERT_NE(t.ReplyTo(0, too_early), nullptr);
  EXPECT_EQ(t.ReplyTo(0, too_early)->header.status, ReplyStatus::kBusy);
  push(1, 0, g1);
  ASSERT_NE(t.ReplyTo(0, early), nullptr);
  EXPECT_EQ(t.ReplyTo(0, early)->header.status, ReplyStatus::kOk);
  EXPECT_THAT(t.Weights(0), ElementsAre(-1));
  push(1, 1, g2);
  EXPECT_THAT(t.Weights(0), ElementsAre(-3));
}

TEST(ShardBsp, EarlyPushesLeaveSlotsForTheOpenRound) {
  constexpr uint32_t kChunks = 16;
  ShardOptions options;
  options.receive_slots = 4;
  ShardHarness t(TestMap(TestJob(0), std::vector<size_t>(kChunks, 1)), 2, options);
  t.InitAll(0);
  const std::vector<float> gradient{1};
  std::vector<uint64_t> early;
  for (Clock clock = 0; clock < 2; ++clock) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      proto::WireHeader header = t.Header(proto::MessageKind::kPush, 0, chunk, clock);
      header.codec = CodecId::kFp32;
      header.payload_bytes = 4;
      t.channel(0).Arrive(header, ShardHarness::BytesOf(gradient));
      if (clock == 1) early.push_back(header.request_id);
    }
  }
  size_t busy = 0;
  for (uint64_t id : early) busy += t.ReplyTo(0, id) != nullptr;
  EXPECT_EQ(busy, kChunks - options.receive_slots / 2);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const uint64_t id = t.PushPull(1, chunk, 0, {1});
    EXPECT_NE(t.ReplyTo(1, id), nullptr) << "chunk " << chunk;
  }
}

TEST(ShardSsp, AppliesAtOnceAndReleasesWithinTheBound) {
  ShardHarness t(TestMap(TestJob(1), {1}), 2);
  t.InitAll(0);
  const uint64_t a0 = t.PushPull(0, 0, 0, {2});
  EXPECT_THAT(t.Weights(0), ElementsAre(-1));  // lr / W
  ASSERT_NE(t.ReplyTo(0, a0), nullptr);        // Clock 1 may miss clock 0 of the other.
  const uint64_t a1 = t.PushPull(0, 0, 1, {2});
  EXPECT_EQ(t.ReplyTo(0, a1), nullptr);
  EXPECT_TRUE(t.Taken(0, a1));
  const uint64_t b0 = t.PushPull(1, 0, 0, {2});
  ASSERT_NE(t.ReplyTo(0, a1), nullptr);
  EXPECT_EQ(t.ReplyTo(0, a1)->header.min_clock, 0);
  EXPECT_NE(t.ReplyTo(1, b0), nullptr);
  EXPECT_THAT(t.ReplyTo(0, a1)->Floats(), ElementsAre(-3));
}

TEST(ShardAsp, ScaleSumDoesNotDivide) {
  control::JobSpec job = TestJob(-1);
  job.set_async_scale_sum(true);
  ShardHarness t(TestMap(job, {1}), 4);
  t.InitAll(0);
  const uint64_t a = t.PushPull(0, 0, 0, {6}, 3);
  ASSERT_NE(t.ReplyTo(0, a), nullptr);
  EXPECT_THAT(t.ReplyTo(0, a)->Floats(), ElementsAre(-2));
  EXPECT_EQ(t.ReplyTo(0, a)->header.min_clock, kNoClock);
}

TEST(ShardValues, NotFiniteCountsAsEmpty) {
  ShardHarness t(TestMap(TestJob(0), {3}), 1);
  t.InitAll(1);
  const uint64_t id = t.PushPull(0, 0, 0, {1, std::numeric_limits<float>::quiet_NaN(), 1});
  ASSERT_NE(t.ReplyTo(0, id), nullptr);
  EXPECT_EQ(t.ReplyTo(0, id)->header.status, ReplyStatus::kNotFinite);
  EXPECT_THAT(t.ReplyTo(0, id)->Floats(), Each(1));  // Weights for the next clock all the same.
  t.channel(0).SendAll();
  t.PushPull(0, 0, 1, {1, 1, 1});
  EXPECT_THAT(t.Weights(0), Each(0));
}

TEST(ShardValues, OverflowByASmallLossScaleIsNotFinite) {
  ShardHarness t(TestMap(TestJob(0), {1}), 1);
  t.InitAll(1);
  proto::WireHeader header = t.Header(proto::MessageKind::kPushPull, 0, 0, 0);
  header.codec = CodecId::kFp32;
  header.scale = 0x1p-20f;
  header.payload_bytes = 4;
  const std::vector<float> gradient{1e37f};
  t.channel(0).Arrive(header, ShardHarness::BytesOf(gradient));
  EXPECT_EQ(t.channel(0).replies.back().header.status, ReplyStatus::kNotFinite);
  EXPECT_THAT(t.Weights(0), ElementsAre(1));
}

TEST(ShardInit, TakenOnceAndNeededFirst) {
  ShardHarness t(TestMap(TestJob(0), {1}), 1);
  const uint64_t early_pull = t.Pull(0, 0, 0);
  EXPECT_EQ(t.ReplyTo(0, early_pull)->header.status, ReplyStatus::kNotInitialised);
  const uint64_t early_push = t.PushPull(0, 0, 0, {1});
  EXPECT_EQ(t.ReplyTo(0, early_push)->header.status, ReplyStatus::kNotInitialised);
  t.Init(0, {7});
  EXPECT_EQ(t.channel(0).replies.back().header.status, ReplyStatus::kOk);
  t.Init(0, {8});
  EXPECT_EQ(t.channel(0).replies.back().header.status, ReplyStatus::kDuplicate);
  const uint64_t pull = t.Pull(0, 0, 0);
  EXPECT_THAT(t.ReplyTo(0, pull)->Floats(), ElementsAre(7));
  EXPECT_TRUE(t.shard->initialised());
}

TEST(ShardOptimizer, WeightDecayOnlyWhereATensorDecays) {
  control::JobSpec job = TestJob(0);
  job.mutable_optimizer()->set_weight_decay(0.5);
  control::ShardMap map = TestMap(job, {2, 2, 2});
  // One chunk that holds three tensors, of which the middle one decays.
  control::ShardMap joined = map;
  joined.clear_chunks();
  control::Chunk* chunk = joined.add_chunks();
  chunk->set_count(6);
  for (uint32_t tensor = 0; tensor < 3; ++tensor) {
    control::Segment* segment = chunk->add_segments();
    segment->set_tensor(tensor);
    segment->set_chunk_offset(2 * tensor);
    segment->set_count(2);
  }
  ShardHarness t(joined, 1);
  ASSERT_TRUE(t.install_status.ok()) << t.install_status;
  t.InitAll(1);
  t.PushPull(0, 0, 0, {0, 0, 0, 0, 0, 0});
  EXPECT_THAT(t.Weights(0), ElementsAre(1, 1, 0.5f, 0.5f, 1, 1));
}

TEST(ShardPins, AReplyInFlightKeepsItsVersion) {
  for (const char* codec : {"fp32", "fp16"}) {
    control::JobSpec job = TestJob(-1);
    job.set_pull_codec(codec);
    ShardHarness t(TestMap(job, {1}), 2);
    t.InitAll(0);
    auto value = [&](const FakeReply& reply) {
      float out = 0;
      FindCodec(codec)->Decode(reply.payload.data(), 1, 1, &out);
      return out;
    };
    const uint64_t a = t.PushPull(0, 0, 0, {2});  // Its reader is slow.
    const uint64_t b = t.PushPull(1, 0, 0, {2});  // So is this one, of the next version.
    EXPECT_EQ(value(*t.ReplyTo(0, a)), -1);
    EXPECT_EQ(value(*t.ReplyTo(1, b)), -2);
    // Both copies are being sent: the next push waits, its payload taken.
    proto::WireHeader header = t.Header(proto::MessageKind::kPush, 1, 0, 1);
    header.codec = CodecId::kFp32;
    header.payload_bytes = 4;
    const std::vector<float> gradient{2};
    t.channel(1).Arrive(header, ShardHarness::BytesOf(gradient));
    EXPECT_EQ(t.ReplyTo(1, header.request_id), nullptr);
    EXPECT_TRUE(t.Taken(1, header.request_id));
    EXPECT_EQ(value(*t.ReplyTo(0, a)), -1) << codec;
    EXPECT_EQ(value(*t.ReplyTo(1, b)), -2) << codec;
    // Once one has left, it goes on, into that copy.
    t.channel(0).SendAll();
    ASSERT_NE(t.ReplyTo(1, header.request_id), nullptr);
    EXPECT_THAT(t.Weights(0), ElementsAre(-3));
    EXPECT_EQ(value(*t.ReplyTo(1, b)), -2) << codec;
  }
}

TEST(ShardPins, AClosedChannelLetsGo) {
  ShardHarness t(TestMap(TestJob(-1), {1}), 3);
  t.InitAll(0);
  t.PushPull(0, 0, 0, {3});
  t.PushPull(1, 0, 0, {3});
  const uint64_t c = t.PushPull(2, 0, 0, {3});
  EXPECT_EQ(t.ReplyTo(2, c), nullptr);
  t.channel(0).Break();
  EXPECT_NE(t.ReplyTo(2, c), nullptr);
  EXPECT_THAT(t.Weights(0), ElementsAre(-3));
}

TEST(ShardPins, AReaderThatNeverReadsLosesItsChannel) {
  ShardHarness t(TestMap(TestJob(-1), {1}), 3);
  t.InitAll(0);
  t.PushPull(0, 0, 0, {3});
  t.PushPull(1, 0, 0, {3});
  const uint64_t c = t.PushPull(2, 0, 0, {3});
  const TimeNs deadline = t.shard->NextDeadline();
  EXPECT_LE(deadline, t.time.now + 10 * kNsPerSecond);
  t.time.now += 31 * kNsPerSecond;
  t.shard->OnTick(t.time.now);
  EXPECT_TRUE(t.channel(0).closed);
  EXPECT_NE(t.ReplyTo(2, c), nullptr);
}

TEST(ShardPins, ASlowReaderThatGoesOnKeepsItsChannel) {
  ShardHarness t(TestMap(TestJob(-1), {1}), 1);
  t.InitAll(0);
  const uint64_t first = t.Pull(0, 0, 0);
  const uint64_t second = t.PushPull(0, 0, 0, {3});
  t.time.now += 20 * kNsPerSecond;
  t.shard->OnTick(t.time.now);
  t.shard->OnReplySent(t.channel(0), first);
  t.time.now += 20 * kNsPerSecond;
  t.shard->OnTick(t.time.now);
  EXPECT_FALSE(t.channel(0).closed) << "it read a reply 20 s ago";
  EXPECT_NE(t.ReplyTo(0, second), nullptr);
  t.time.now += 20 * kNsPerSecond;
  t.shard->OnTick(t.time.now);
  EXPECT_TRUE(t.channel(0).closed);
}

TEST(ShardPins, AViewThatClosesARoundWaitsForACopy) {
  ShardHarness t(TestMap(TestJob(0), {1}), 3);
  t.InitAll(0);
  // The copies of two versions are being sent, both to a member that stays.
  t.Pull(0, 0, 0);
  for (uint32_t worker = 0; worker < 3; ++worker) t.PushPull(worker, 0, 0, {1});
  t.channel(1).SendAll();
  t.channel(2).SendAll();
  const uint64_t a = t.PushPull(0, 0, 1, {1});
  EXPECT_TRUE(t.Taken(0, a));
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}})).ok());
  EXPECT_EQ(t.shard->view_version(), 1u);
  EXPECT_THAT(t.Weights(0), ElementsAre(-1));
  t.channel(0).SendAll();
  EXPECT_EQ(t.shard->view_version(), 2u);
  ASSERT_NE(t.ReplyTo(0, a), nullptr);
  EXPECT_THAT(t.Weights(0), ElementsAre(-2));
}

TEST(ShardPins, AReaderThatLeftTheViewLetsGoAtOnce) {
  for (const int32_t staleness : {0, -1}) {
    ShardHarness t(TestMap(TestJob(staleness), {1}), 3);
    t.InitAll(0);
    // Worker 2 stopped reading: it keeps the copies of two versions.
    t.Pull(2, 0, 0);
    for (uint32_t worker = 0; worker < 3; ++worker) t.PushPull(worker, 0, 0, {1});
    t.channel(0).SendAll();
    t.channel(1).SendAll();
    ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}, {1, 1, 0}})).ok());
    EXPECT_EQ(t.shard->view_version(), 2u);
    EXPECT_TRUE(t.channel(2).closed);
    EXPECT_FALSE(t.channel(0).closed);
    const uint64_t a = t.PushPull(0, 0, 1, {1});
    const uint64_t b = t.PushPull(1, 0, 1, {1});
    EXPECT_NE(t.ReplyTo(0, a), nullptr);
    EXPECT_NE(t.ReplyTo(1, b), nullptr);
  }
}

TEST(ShardSlots, AnExhaustedPoolStopsAChannelAndResumesIt) {
  ShardOptions options;
  options.receive_slots = 1;
  ShardHarness t(TestMap(TestJob(-1), {1, 1}), 2, options);
  t.InitAll(0);
  // Worker 0's payload is on its way into the only slot.
  proto::WireHeader header = t.Header(proto::MessageKind::kPush, 0, 0, 0);
  header.codec = CodecId::kFp32;
  header.payload_bytes = 4;
  const transport::Landing landing = t.shard->OnRequestArriving(t.channel(0), header);
  ASSERT_EQ(landing.verdict, transport::Landing::Verdict::kInto);
  const std::vector<float> gradient{2};
  proto::WireHeader other = t.Header(proto::MessageKind::kPush, 1, 1, 0);
  other.codec = CodecId::kFp32;
  other.payload_bytes = 4;
  t.channel(1).Arrive(other, ShardHarness::BytesOf(gradient));
  EXPECT_TRUE(t.channel(1).stopped());
  std::memcpy(landing.memory.data(), gradient.data(), 4);
  t.shard->OnRequest(t.channel(0), header, landing.memory);
  EXPECT_FALSE(t.channel(1).stopped());
  ASSERT_NE(t.ReplyTo(1, other.request_id), nullptr);
  EXPECT_THAT(t.Weights(1), ElementsAre(-1));
}

TEST(ShardSlots, ABrokenChannelGivesBackTheSlotItWasFilling) {
  ShardOptions options;
  options.receive_slots = 1;
  ShardHarness t(TestMap(TestJob(-1), {1}), 2, options);
  t.InitAll(0);
  proto::WireHeader header = t.Header(proto::MessageKind::kPush, 0, 0, 0);
  header.codec = CodecId::kFp32;
  header.payload_bytes = 4;
  ASSERT_EQ(t.shard->OnRequestArriving(t.channel(0), header).verdict,
            transport::Landing::Verdict::kInto);
  const std::vector<float> gradient{2};
  header = t.Header(proto::MessageKind::kPush, 1, 0, 0);
  header.codec = CodecId::kFp32;
  header.payload_bytes = 4;
  t.channel(1).Arrive(header, ShardHarness::BytesOf(gradient));
  EXPECT_TRUE(t.channel(1).stopped());
  t.channel(0).Break();
  EXPECT_NE(t.ReplyTo(1, header.request_id), nullptr);
}

// A transport may find a channel broken, and say so, inside the shard's own call: the round's other
// answers go out, and what was held is taken up once, afterwards.
TEST(ShardChannels, MayBreakWhileARoundIsAnswered) {
  for (const bool by_view : {false, true}) {
    ShardHarness t(TestMap(TestJob(0), {1}), 4);
    t.InitAll(0);
    const std::vector<float> gradient{1};
    auto push = [&](Clock clock) {
      proto::WireHeader header = t.Header(proto::MessageKind::kPush, 2, 0, clock);
      header.codec = CodecId::kFp32;
      header.payload_bytes = 4;
      t.channel(2).Arrive(header, ShardHarness::BytesOf(gradient));
      return header.request_id;
    };
    t.PushPull(0, 0, 0, gradient);
    const uint64_t b = t.PushPull(1, 0, 0, gradient);
    push(0);
    const uint64_t held = push(1);
    EXPECT_EQ(t.ReplyTo(2, held), nullptr);
    t.channel(0).breaks_at_reply = true;
    if (by_view) {
      ASSERT_TRUE(t.shard->InstallView(TestView(2, TestMembers(3))).ok());
    } else {
      t.PushPull(3, 0, 0, gradient);
    }
    EXPECT_TRUE(t.channel(0).closed);
    ASSERT_NE(t.ReplyTo(1, b), nullptr);
    EXPECT_THAT(t.ReplyTo(1, b)->Floats(), ElementsAre(-1));
    ASSERT_NE(t.ReplyTo(2, held), nullptr);
    EXPECT_EQ(t.ReplyTo(2, held)->header.status, ReplyStatus::kOk);
    EXPECT_EQ(t.shard->chunks()->at(0).steps, 1u);
  }
}

TEST(ShardHello, AReconnectClosesTheOldChannel) {
  ShardHarness t(TestMap(TestJob(0), {1}), 2);
  t.InitAll(0);
  const uint64_t a = t.PushPull(0, 0, 0, {1});
  FakeChannel& fresh = t.Open();
  ASSERT_EQ(t.Hello(fresh, 0), ReplyStatus::kOk);
  EXPECT_TRUE(t.channel(0).closed);
  t.PushPull(1, 0, 0, {1});
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);  // The old channel's pull is gone.
}

TEST(ShardHello, StrangersAreTurnedAway) {
  ShardHarness t(TestMap(TestJob(0), {1}), 1);
  FakeChannel& channel = t.Open();
  EXPECT_EQ(t.Hello(channel, 9), ReplyStatus::kNotInView);
  EXPECT_EQ(t.Hello(channel, 0, 2), ReplyStatus::kNotInView);
  proto::WireHeader header = t.Header(proto::MessageKind::kHello, 0, 0, 0);
  header.epoch = 2;
  channel.Arrive(header);
  EXPECT_EQ(channel.replies.back().header.status, ReplyStatus::kMapChanged);
  t.time.now += 11 * kNsPerSecond;
  t.shard->OnTick(t.time.now);
  EXPECT_TRUE(channel.closed);
  EXPECT_FALSE(t.channel(0).closed);
}

TEST(ShardHello, MoreChannelsThanTheTableHoldsAreClosed) {
  ShardOptions options;
  options.max_channels = 2;
  ShardHarness t(TestMap(TestJob(0), {1}), 1, options);
  EXPECT_FALSE(t.Open().closed);
  EXPECT_TRUE(t.Open().closed);
}

}  // namespace
}  // namespace slackline::server
