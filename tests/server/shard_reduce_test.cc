// kReduce, step by step: what a round is made of, who waits for whom, and what a resend gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "proto/reduce.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;
using testing::ElementsAre;

constexpr uint32_t kMaximum = proto::kReduceSumRounds;

class ShardReduce : public testing::Test {
 protected:
  explicit ShardReduce(uint32_t workers = 3, int staleness = 0)
      : t(TestMap(TestJob(staleness), {4, 4}), workers) {
    t.InitAll(0);
  }
  WireHeader Header(WorkerId worker, Clock clock, uint32_t round, size_t values) {
    WireHeader header = t.Header(MessageKind::kReduce, worker, 0, clock);
    header.codec = CodecId::kFp32;
    header.reply_codec = CodecId::kFp32;
    header.round = round;
    header.payload_bytes = static_cast<uint32_t>(values * sizeof(float));
    return header;
  }
  uint64_t Reduce(WorkerId worker, Clock clock, uint32_t round, const std::vector<float>& values,
                  double weight = 1) {
    WireHeader header = Header(worker, clock, round, values.size());
    header.weight = weight;
    t.channel(worker).Arrive(header, ShardHarness::BytesOf(values));
    return header.request_id;
  }
  uint64_t Empty(WorkerId worker, Clock clock, uint32_t round) {
    WireHeader header = Header(worker, clock, round, 0);
    header.flags = proto::kFlagEmptyPush;
    header.codec = header.reply_codec = CodecId::kNone;
    t.channel(worker).Arrive(header);
    return header.request_id;
  }
  ReplyStatus StatusOf(WorkerId worker, uint64_t id) {
    const FakeReply* reply = t.ReplyTo(worker, id);
    EXPECT_NE(reply, nullptr);
    return reply == nullptr ? ReplyStatus::kShuttingDown : reply->header.status;
  }
  std::vector<float> AggregateOf(WorkerId worker, uint64_t id) {
    const FakeReply* reply = t.ReplyTo(worker, id);
    EXPECT_NE(reply, nullptr);
    return reply == nullptr ? std::vector<float>() : reply->Floats();
  }
  // All workers push the clock, so that the next one's rounds are open.
  void PushAll(Clock clock, uint32_t workers) {
    for (WorkerId worker = 0; worker < workers; ++worker) {
      for (ChunkIndex chunk : {0, 1}) t.PushPull(worker, chunk, clock, {1, 1, 1, 1});
    }
    t.SendAll();
  }

  ShardHarness t;
};

TEST_F(ShardReduce, EveryoneGetsTheSumWhenAllHaveContributed) {
  const uint64_t a = Reduce(0, 0, 0, {1, 2}, 2);
  const uint64_t b = Reduce(1, 0, 0, {3, 4}, 1);
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  EXPECT_TRUE(t.Taken(0, a));  // Its credit returns before the round is complete.
  EXPECT_TRUE(t.Taken(1, b));
  const uint64_t c = Reduce(2, 0, 0, {5, 6}, 4);
  for (const auto& [worker, id] : {std::pair{0u, a}, {1u, b}, {2u, c}}) {
    EXPECT_THAT(AggregateOf(worker, id), ElementsAre(9, 12));
    EXPECT_EQ(t.ReplyTo(worker, id)->header.codec, CodecId::kFp32);
    EXPECT_EQ(t.ReplyTo(worker, id)->header.weight, 7);
  }
  EXPECT_THAT(t.Weights(0), ElementsAre(0, 0, 0, 0));  // Nothing was applied.
  PushAll(0, 3);
  EXPECT_THAT(t.Weights(0), ElementsAre(-1, -1, -1, -1));
}

TEST_F(ShardReduce, RoundsAreIndependentAndSomeAreMaxima) {
  std::vector<uint64_t> sums, maxima;
  for (WorkerId worker : {0, 1, 2}) {
    const auto value = static_cast<float>(worker);
    sums.push_back(Reduce(worker, 0, 1, {value}));
    maxima.push_back(Reduce(worker, 0, kMaximum, {value, -value, 1 - value}));
  }
  for (WorkerId worker : {0, 1, 2}) {
    EXPECT_THAT(AggregateOf(worker, sums[worker]), ElementsAre(3));
    EXPECT_THAT(AggregateOf(worker, maxima[worker]), ElementsAre(2, 0, 1));
  }
}

TEST_F(ShardReduce, AResendIsCountedOnceAndGetsTheSameBytes) {
  Reduce(0, 0, 0, {1});
  t.Reconnect(0);  // The reply was lost with the channel, and so was the knowledge of it.
  const uint64_t again = Reduce(0, 0, 0, {1});
  const uint64_t twice = Reduce(0, 0, 0, {1});
  Reduce(1, 0, 0, {10});
  Reduce(2, 0, 0, {100});
  EXPECT_EQ(t.ReplyTo(0, again), nullptr);  // Superseded by the one below.
  EXPECT_THAT(AggregateOf(0, twice), ElementsAre(111));
  const uint64_t late = Reduce(0, 0, 0, {1});
  EXPECT_THAT(AggregateOf(0, late), ElementsAre(111));
}

TEST_F(ShardReduce, ADeadWorkerDoesNotHoldTheRound) {
  const uint64_t a = Reduce(0, 0, 0, {1});
  Reduce(1, 0, 0, {10});
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  // Worker 1 contributed and died, worker 2 died without: the one stays in, the other is not
  // waited for.
  ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}})).ok());
  EXPECT_THAT(AggregateOf(0, a), ElementsAre(11));
  EXPECT_EQ(t.channel(1).replies.back().header.status, ReplyStatus::kNotInView);
  // The next clock is its own.
  t.SendAll();
  t.PushPull(0, 0, 0, {1, 1, 1, 1});
  const uint64_t next = Reduce(0, 1, 0, {5});
  EXPECT_THAT(AggregateOf(0, next), ElementsAre(5));
}

TEST_F(ShardReduce, AJoinerGetsTheAggregateOfACompleteRound) {
  const uint64_t a = Reduce(0, 0, 0, {1});
  Reduce(1, 0, 0, {10});
  Reduce(2, 0, 0, {100});
  ASSERT_TRUE(t.shard->InstallView(TestView(2, {{0, 1, 0}, {1, 1, 0}, {2, 2, 0}})).ok());
  FakeChannel& joiner = t.Open();
  t.Hello(joiner, 2, 2);
  WireHeader header = Header(2, 0, 0, 1);
  header.incarnation = 2;
  const std::vector<float> values{1000};
  joiner.Arrive(header, ShardHarness::BytesOf(values));
  EXPECT_THAT(joiner.replies.back().Floats(), ElementsAre(111));
  EXPECT_THAT(AggregateOf(0, a), ElementsAre(111));
  // Of one that is not complete it is a part.
  Reduce(0, 0, 1, {1});
  const uint64_t b = Reduce(1, 0, 1, {10});
  EXPECT_EQ(t.ReplyTo(1, b), nullptr);
  header.round = 1;
  header.request_id = ++t.last_id;
  joiner.Arrive(header, ShardHarness::BytesOf(values));
  EXPECT_THAT(AggregateOf(1, b), ElementsAre(1011));
}

TEST_F(ShardReduce, EmptyContributionsAndPushesCountAsDone) {
  const uint64_t a = Reduce(0, 0, 0, {1});
  const uint64_t empty = Empty(1, 0, 0);
  EXPECT_EQ(StatusOf(1, empty), ReplyStatus::kOk);  // At once: it needs no aggregate.
  EXPECT_TRUE(t.ReplyTo(1, empty)->payload.empty());
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  t.EmptyPushPull(2, 0, 0);  // It went ahead.
  EXPECT_THAT(AggregateOf(0, a), ElementsAre(1));
}

TEST_F(ShardReduce, WhatIsNotFiniteCountsAsEmpty) {
  const uint64_t a = Reduce(0, 0, 0, {1, 1});
  const uint64_t b = Reduce(1, 0, 0, {1, std::numeric_limits<float>::infinity()});
  EXPECT_EQ(StatusOf(1, b), ReplyStatus::kNotFinite);
  Reduce(2, 0, 0, {2, 2});
  EXPECT_THAT(AggregateOf(0, a), ElementsAre(3, 3));
}

TEST_F(ShardReduce, RefusesWhatDoesNotFit) {
  Reduce(0, 0, 0, {1, 1});
  EXPECT_EQ(StatusOf(1, Reduce(1, 0, 0, {1})), ReplyStatus::kMalformed);  // Another size.
  EXPECT_EQ(StatusOf(1, Reduce(1, 0, 0, {1, 1, 1, 1, 1})), ReplyStatus::kMalformed);
  EXPECT_EQ(StatusOf(1, Reduce(1, 0, proto::kReduceRounds, {1})), ReplyStatus::kMalformed);
  EXPECT_EQ(StatusOf(1, Reduce(1, 3, 0, {1})), ReplyStatus::kBusy);  // Early.
  WireHeader header = Header(1, 0, 0, 0);
  t.channel(1).Arrive(header);
  EXPECT_EQ(StatusOf(1, header.request_id), ReplyStatus::kMalformed);  // Neither empty nor full.
  header = Header(1, 0, 0, 2);
  header.codec = CodecId::kFp16;
  const std::vector<float> values{1, 1};
  t.channel(1).Arrive(header, ShardHarness::BytesOf(values));
  EXPECT_EQ(StatusOf(1, header.request_id), ReplyStatus::kMalformed);
  PushAll(0, 3);
  EXPECT_EQ(StatusOf(1, Reduce(1, 0, 0, {1, 1})), ReplyStatus::kRoundClosed);
}

TEST_F(ShardReduce, AnAggregateThatIsStillSentIsNotReplaced) {
  Reduce(0, 0, 0, {1});
  Reduce(1, 0, 0, {1});
  Reduce(2, 0, 0, {1});  // None of the replies has left.
  for (WorkerId worker : {0, 1, 2}) t.PushPull(worker, 0, 0, {1, 1, 1, 1});
  EXPECT_EQ(StatusOf(0, Reduce(0, 1, 0, {7})), ReplyStatus::kBusy);
  t.SendAll();
  Reduce(0, 1, 0, {7});
  Reduce(1, 1, 0, {7});
  EXPECT_THAT(AggregateOf(2, Reduce(2, 1, 0, {7})), ElementsAre(21));
}

TEST_F(ShardReduce, AChannelThatBreaksAtItsReplyTakesNothingWithIt) {
  Reduce(0, 0, 0, {1});
  const uint64_t b = Reduce(1, 0, 0, {1});
  t.channel(0).breaks_at_reply = true;
  const uint64_t c = Reduce(2, 0, 0, {1});
  EXPECT_THAT(AggregateOf(1, b), ElementsAre(3));
  EXPECT_THAT(AggregateOf(2, c), ElementsAre(3));
  t.Reconnect(0);
  EXPECT_THAT(AggregateOf(0, Reduce(0, 0, 0, {1})), ElementsAre(3));
}

class ShardReduceSsp : public ShardReduce {
 protected:
  ShardReduceSsp() : ShardReduce(2, 1) {}
};

TEST_F(ShardReduceSsp, ThereAreNoRoundsUnderAStaleness) {
  EXPECT_EQ(StatusOf(0, Reduce(0, 0, 0, {1})), ReplyStatus::kMalformed);
}

}  // namespace
}  // namespace slackline::server
