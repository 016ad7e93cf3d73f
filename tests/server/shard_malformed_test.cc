// Requests that a worker with a bug, an old map or bad intentions could send: each is refused with
// its status, and changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;
using testing::Each;

struct MalformedCase {
  const char* name;
  MessageKind kind;
  std::function<void(WireHeader&)> spoil;
  ReplyStatus status = ReplyStatus::kMalformed;
};

std::vector<MalformedCase> Cases() {
  constexpr auto kPushPull = MessageKind::kPushPull;
  const float inf = std::numeric_limits<float>::infinity();
  return {
      {"epoch", kPushPull, [](WireHeader& h) { h.epoch = 2; }, ReplyStatus::kMapChanged},
      {"worker", kPushPull, [](WireHeader& h) { h.worker = 1; }},
      {"incarnation", kPushPull, [](WireHeader& h) { h.incarnation = 2; }},
      {"table", kPushPull, [](WireHeader& h) { h.table = 1; }},
      {"chunk", kPushPull, [](WireHeader& h) { h.chunk = 2; }},
      {"chunk far off", kPushPull, [](WireHeader& h) { h.chunk = UINT32_MAX; }},
      {"chunk of another shard", kPushPull, [](WireHeader& h) { h.chunk = 1; }},
      {"round", kPushPull, [](WireHeader& h) { h.round = 1; }},
      {"codec", kPushPull, [](WireHeader& h) { h.codec = CodecId::kFp16; }},
      {"no codec", kPushPull, [](WireHeader& h) { h.codec = CodecId::kNone; }},
      {"reply codec", kPushPull, [](WireHeader& h) { h.reply_codec = CodecId::kBf16; }},
      {"short", kPushPull, [](WireHeader& h) { h.payload_bytes -= 4; }},
      {"long", kPushPull, [](WireHeader& h) { h.payload_bytes += 4; }},
      {"no payload", kPushPull, [](WireHeader& h) { h.payload_bytes = 0; }},
      {"empty with payload", kPushPull, [](WireHeader& h) { h.flags = proto::kFlagEmptyPush; }},
      {"weight zero", kPushPull, [](WireHeader& h) { h.weight = 0; }},
      {"weight negative", kPushPull, [](WireHeader& h) { h.weight = -1; }},
      {"weight tiny", kPushPull, [](WireHeader& h) { h.weight = 1e-300; }},
      {"weight nan", kPushPull, [](WireHeader& h) { h.weight = std::nan(""); }},
      {"scale zero", kPushPull, [](WireHeader& h) { h.scale = 0; }},
      {"scale infinite", kPushPull, [inf](WireHeader& h) { h.scale = inf; }},
      {"skips a clock", kPushPull, [](WireHeader& h) { h.clock = 5; }},
      {"pull with payload", MessageKind::kPull, [](WireHeader&) {}},
      {"pull reply codec", MessageKind::kPull,
       [](WireHeader& h) {
         h.payload_bytes = 0;
         h.reply_codec = CodecId::kFp16;
       }},
      {"init codec", MessageKind::kInit, [](WireHeader& h) { h.codec = CodecId::kFp16; }},
      {"init size", MessageKind::kInit, [](WireHeader& h) { h.payload_bytes = 8; }},
      {"reduce", MessageKind::kReduce, [](WireHeader&) {}},
      {"hello with payload", MessageKind::kHello, [](WireHeader&) {}},
  };
}

TEST(ShardMalformed, EachIsRefusedAndChangesNothing) {
  control::ShardMap map = TestMap(TestJob(-1), {4, 4});
  map.mutable_chunks(1)->set_shard(1);
  for (const MalformedCase& c : Cases()) {
    ShardHarness t(map, 2);
    t.Init(0, {1, 2, 3, 4});
    WireHeader header = t.Header(c.kind, 0, 0, 0);
    header.codec = CodecId::kFp32;
    header.payload_bytes = 16;
    c.spoil(header);
    const std::vector<float> payload(8, 9);
    t.channel(0).Arrive(header, ShardHarness::BytesOf(payload).first(header.payload_bytes));
    const FakeReply& reply = t.channel(0).replies.back();
    EXPECT_EQ(reply.header.request_id, header.request_id) << c.name;
    EXPECT_EQ(reply.header.status, c.status)
        << c.name << ": " << proto::ReplyStatusName(reply.header.status);
    EXPECT_TRUE(reply.payload.empty()) << c.name;
    EXPECT_FALSE(t.Taken(0, header.request_id)) << c.name;
    EXPECT_THAT(t.Weights(0), testing::ElementsAre(1, 2, 3, 4)) << c.name;
    EXPECT_EQ(t.shard->Report().refused(), 1u) << c.name;
    // The worker's next push is judged as if nothing had been.
    const uint64_t id = t.PushPull(0, 0, 0, {0, 0, 0, 0});
    ASSERT_NE(t.ReplyTo(0, id), nullptr) << c.name;
    EXPECT_EQ(t.ReplyTo(0, id)->header.status, ReplyStatus::kOk) << c.name;
  }
}

TEST(ShardMalformed, NothingIsTakenBeforeHello) {
  ShardHarness t(TestMap(TestJob(-1), {1}), 1);
  t.InitAll(1);
  FakeChannel& stranger = t.Open();
  WireHeader header = t.Header(MessageKind::kPull, 0, 0, 0);
  stranger.Arrive(header);
  EXPECT_EQ(stranger.replies.back().header.status, ReplyStatus::kMalformed);
}

TEST(ShardMalformed, BeforeTheMapEverythingIsMapChanged) {
  FakeEndpoint endpoint;
  ManualTime time;
  Shard shard(endpoint, time, {});
  FakeChannel channel(shard);
  shard.OnOpened(channel);
  WireHeader header;
  header.kind = MessageKind::kHello;
  header.epoch = 1;
  header.incarnation = 1;
  channel.Arrive(header);
  EXPECT_EQ(channel.replies.back().header.status, ReplyStatus::kMapChanged);
}

TEST(ShardMap, WhatContradictsItselfIsRefused) {
  struct Case {
    const char* name;
    std::function<void(control::ShardMap&)> spoil;
  };
  const std::vector<Case> cases = {
      {"index", [](control::ShardMap& m) { m.mutable_chunks(1)->set_index(7); }},
      {"index twice", [](control::ShardMap& m) { m.mutable_chunks(1)->set_index(0); }},
      {"count zero", [](control::ShardMap& m) { m.mutable_chunks(0)->set_count(0); }},
      {"count huge",
       [](control::ShardMap& m) { m.mutable_chunks(0)->set_count(uint64_t{1} << 40); }},
      {"gap",
       [](control::ShardMap& m) { m.mutable_chunks(0)->mutable_segments(0)->set_chunk_offset(1); }},
      {"too long",
       [](control::ShardMap& m) { m.mutable_chunks(0)->mutable_segments(0)->set_count(5); }},
      {"too short",
       [](control::ShardMap& m) { m.mutable_chunks(0)->mutable_segments(0)->set_count(3); }},
      {"tensor",
       [](control::ShardMap& m) { m.mutable_chunks(0)->mutable_segments(0)->set_tensor(9); }},
      {"codec", [](control::ShardMap& m) { m.mutable_job()->set_push_codec("mp3"); }},
      {"optimizer",
       [](control::ShardMap& m) { m.mutable_job()->mutable_optimizer()->set_name("magic"); }},
      {"schedule",
       [](control::ShardMap& m) { m.mutable_job()->mutable_schedule()->set_name("never"); }},
      {"staleness", [](control::ShardMap& m) { m.mutable_job()->set_staleness(-2); }},
      {"deterministic",
       [](control::ShardMap& m) {
         m.mutable_job()->set_staleness(2);
         m.mutable_job()->set_deterministic(true);
       }},
  };
  for (const Case& c : cases) {
    control::ShardMap map = TestMap(TestJob(0), {4, 4});
    c.spoil(map);
    ShardHarness t(map, 1);
    EXPECT_EQ(t.install_status.code(), StatusCode::kInvalidArgument) << c.name;
    EXPECT_EQ(t.shard->epoch(), 0u) << c.name;
  }
}

TEST(ShardMap, ANewerEpochMustLeaveTheChunksAlone) {
  control::ShardMap map = TestMap(TestJob(0), {4, 4});
  ShardHarness t(map, 1);
  EXPECT_TRUE(t.shard->InstallMap(map).ok());
  map.set_epoch(2);
  EXPECT_TRUE(t.shard->InstallMap(map).ok());
  EXPECT_EQ(t.shard->epoch(), 2u);
  map.set_epoch(3);
  map.mutable_chunks(1)->set_shard(1);
  EXPECT_EQ(t.shard->InstallMap(map).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(t.shard->epoch(), 2u);
}

}  // namespace
}  // namespace slackline::server
