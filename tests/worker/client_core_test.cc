#include "worker/client/client_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/worker/fake_endpoint.h"

namespace slackline::worker {
namespace {

using proto::MessageKind;
using proto::ReplyStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kChunks = 6;
constexpr size_t kChunkBytes = 64;

class Recorder final : public CoreEvents {
 public:
  void OnChunkDone(const ChunkResult& result) override { done.push_back(result); }
  void OnAllOpen() override { ++all_open; }
  void OnLinkLost(ShardIndex, uint32_t, const Status& status) override { lost.push_back(status); }
  void OnMapNeeded(Epoch epoch) override { map_needed.push_back(epoch); }
  void OnWaiting(const std::string& line) override { waiting.push_back(line); }
  void OnChunkDropped(ChunkIndex chunk) override {
    EXPECT_FALSE(failed.empty()) << "whoever waited for the chunk asks for the reason";
    dropped.push_back(chunk);
  }
  void OnFailed(const Status& status) override { failed.push_back(status); }

  std::vector<ChunkResult> done;
  int all_open = 0;
  std::vector<Status> lost;
  std::vector<Epoch> map_needed;
  std::vector<std::string> waiting;
  std::vector<ChunkIndex> dropped;
  std::vector<Status> failed;
};

// Six chunks on one or two shards; chunk k of two is on shard k % 2.
class ClientCoreTest : public ::testing::Test {
 protected:
  void Start(uint32_t shards = 1, const CoreOptions& options = Options()) {
    core_ = std::make_unique<ClientCore>(options, endpoint_, time_, events_);
    ASSERT_TRUE(core_->SetMap(Map(1, shards)).ok());
    ASSERT_EQ(endpoint_.channels.size(), shards);
  }
  // Start, and every hello answered.
  void StartOpen(uint32_t shards = 1, const CoreOptions& options = Options()) {
    Start(shards, options);
    for (uint32_t shard = 0; shard < shards; ++shard) Greet(*endpoint_.channels[shard]);
    ASSERT_EQ(events_.all_open, 1);
  }
  void Greet(FakeChannel& channel) {
    endpoint_.Open(channel);
    ASSERT_EQ(channel.sent.size(), 1U);
    EXPECT_EQ(channel.sent[0].header.kind, MessageKind::kHello);
    endpoint_.Answer(channel, 0, ReplyStatus::kOk);
  }
  static CoreOptions Options() { return {.worker = 3, .incarnation = 2}; }
  static CoreMap Map(Epoch epoch, uint32_t shards) {
    CoreMap map{.epoch = epoch, .shard_addresses = {}, .chunk_shard = {}};
    for (uint32_t shard = 0; shard < shards; ++shard) {
      map.shard_addresses.push_back("fake://shard" + std::to_string(shard));
    }
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) map.chunk_shard.push_back(chunk % shards);
    return map;
  }
  ChunkRequest PushPull(ChunkIndex chunk, Clock clock = 5) {
    payload_[chunk].fill(std::byte{static_cast<uint8_t>(16 * clock + chunk)});
    return {.kind = MessageKind::kPushPull,
            .chunk = chunk,
            .clock = clock,
            .codec = CodecId::kFp32,
            .reply_codec = CodecId::kFp32,
            .weight = 8,
            .scale = 1024,
            .payload = payload_[chunk],
            .landing = landing_[chunk]};
  }
  void Submit(std::initializer_list<ChunkIndex> chunks) {
    for (const ChunkIndex chunk : chunks) ASSERT_TRUE(core_->Submit(PushPull(chunk)).ok());
  }
  // Moves time from deadline to deadline, up to `until_ns`.
  void RunUntil(TimeNs until_ns) {
    while (core_->NextDeadline() <= until_ns) {
      time_.now_ns = std::max(time_.now_ns, core_->NextDeadline());
      core_->OnTick();
    }
    time_.now_ns = until_ns;
  }
  static std::vector<ChunkIndex> Chunks(const FakeChannel& channel, size_t from = 1) {
    std::vector<ChunkIndex> chunks;
    for (size_t i = from; i < channel.sent.size(); ++i) {
      chunks.push_back(channel.sent[i].header.chunk);
    }
    return chunks;
  }

  std::array<std::array<std::byte, kChunkBytes>, kChunks> payload_{};
  std::array<std::array<std::byte, kChunkBytes>, kChunks> landing_{};
  ManualTime time_;
  FakeEndpoint endpoint_;
  Recorder events_;
  std::unique_ptr<ClientCore> core_;
};

TEST_F(ClientCoreTest, SaysHelloToEveryShardBeforeAnythingElse) {
  Start(2);
  Submit({0, 1});
  for (auto& channel : endpoint_.channels) {
    endpoint_.Open(*channel);
    ASSERT_EQ(channel->sent.size(), 1U);
    const proto::WireHeader& hello = channel->sent[0].header;
    EXPECT_EQ(hello.kind, MessageKind::kHello);
    EXPECT_EQ(hello.worker, 3U);
    EXPECT_EQ(hello.incarnation, 2U);
    EXPECT_EQ(hello.epoch, 1U);
  }
  EXPECT_EQ(events_.all_open, 0);
  for (auto& channel : endpoint_.channels) endpoint_.Answer(*channel, 0, ReplyStatus::kOk);
  EXPECT_EQ(events_.all_open, 1);
  EXPECT_THAT(Chunks(*endpoint_.channels[0]), ElementsAre(0));
  EXPECT_THAT(Chunks(*endpoint_.channels[1]), ElementsAre(1));
}

TEST_F(ClientCoreTest, APushPullCarriesItsIdentityAndFillsItsLanding) {
  StartOpen();
  Submit({4});
  FakeChannel& channel = endpoint_.last();
  const FakeChannel::Sent& sent = channel.sent[1];
  EXPECT_EQ(sent.header.kind, MessageKind::kPushPull);
  EXPECT_EQ(sent.header.worker, 3U);
  EXPECT_EQ(sent.header.incarnation, 2U);
  EXPECT_EQ(sent.header.clock, 5);
  EXPECT_EQ(sent.header.chunk, 4U);
  EXPECT_EQ(sent.header.weight, 8);
  EXPECT_EQ(sent.header.scale, 1024);
  EXPECT_EQ(sent.header.payload_bytes, kChunkBytes);
  endpoint_.Take(channel, 1);
  EXPECT_TRUE(events_.done.empty());
  endpoint_.Answer(channel, 1, ReplyStatus::kOk, /*min_clock=*/3, /*fill=*/0x5A);
  ASSERT_EQ(events_.done.size(), 1U);
  EXPECT_EQ(events_.done[0].chunk, 4U);
  EXPECT_EQ(events_.done[0].clock, 5);
  EXPECT_EQ(events_.done[0].min_clock, 3);
  EXPECT_EQ(events_.done[0].version, 7U);
  EXPECT_EQ(events_.done[0].bytes_sent, kChunkBytes);
  EXPECT_EQ(events_.done[0].bytes_received, kChunkBytes);
  EXPECT_EQ(landing_[4][0], std::byte{0x5A});
  // The next push says which version it was computed from.
  ASSERT_TRUE(core_->Submit(PushPull(4, 6)).ok());
  EXPECT_EQ(channel.sent[2].header.version, 7U);
  EXPECT_NE(channel.sent[2].header.request_id, channel.sent[1].header.request_id);
}

TEST_F(ClientCoreTest, RefusesASecondRequestForAChunkAndWhatIsNone) {
  StartOpen();
  Submit({2});
  EXPECT_EQ(core_->Submit(PushPull(2)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_->Submit({.chunk = kChunks}).code(), StatusCode::kNotFound);
  EXPECT_EQ(core_->Submit({.kind = MessageKind::kReply, .chunk = 1}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ClientCoreTest, WhatWaitsLeavesInTheOrderOfTheNextForward) {
  Start();
  Submit({5, 1, 3, 0});  // As backward makes them ready, roughly.
  Greet(endpoint_.last());
  EXPECT_THAT(Chunks(endpoint_.last()), ElementsAre(0, 1, 3, 5));
}

TEST_F(ClientCoreTest, CreditBoundsTheBytesThatAShardHasNotTaken) {
  CoreOptions options = Options();
  options.credit_bytes = 2 * kChunkBytes;
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0, 1, 2, 3, 4});
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1));
  endpoint_.Take(channel, 1);
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1, 2));
  endpoint_.Take(channel, 1);  // Told twice: its credit returns once.
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1, 2));
  endpoint_.Answer(channel, 1, ReplyStatus::kOk);  // Taken before: no credit comes back.
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1, 2));
  endpoint_.Answer(channel, 2, ReplyStatus::kOk);  // Answered at once: it does.
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1, 2, 3));
}

TEST_F(ClientCoreTest, APushLargerThanTheCreditTravelsAlone) {
  CoreOptions options = Options();
  options.credit_bytes = kChunkBytes / 2;
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0, 1});
  EXPECT_THAT(Chunks(channel), ElementsAre(0));
  endpoint_.Take(channel, 1);
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1));
}

TEST_F(ClientCoreTest, OpenRequestsAreBounded) {
  CoreOptions options = Options();
  options.max_open_requests = 2;
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0, 1, 2});
  endpoint_.Take(channel, 1);  // Credit is not what holds it.
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1));
  endpoint_.Answer(channel, 1, ReplyStatus::kOk);
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1, 2));
}

TEST_F(ClientCoreTest, AFullChannelIsTriedAgainAfterAReply) {
  StartOpen();
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  channel.next_send = ResourceExhausted("full");
  Submit({1});
  EXPECT_THAT(Chunks(channel), ElementsAre(0));
  EXPECT_FALSE(channel.closed);
  endpoint_.Answer(channel, 1, ReplyStatus::kOk);
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1));
}

TEST_F(ClientCoreTest, ACutLinkSendsTheSameBytesInTheSameOrder) {
  StartOpen();
  FakeChannel& first = endpoint_.last();
  Submit({2, 0, 4});  // Sent in this order: the link is idle.
  endpoint_.Take(first, 2);
  endpoint_.Answer(first, 1, ReplyStatus::kOk);  // Chunk 2 is done and must not go again.
  endpoint_.Cut(first);
  Submit({1});
  ASSERT_EQ(events_.lost.size(), 1U);
  EXPECT_EQ(endpoint_.channels.size(), 1U);  // Not before the backoff.
  RunUntil(time_.now_ns + Options().backoff_min_ns);
  ASSERT_EQ(endpoint_.channels.size(), 2U);
  FakeChannel& second = endpoint_.last();
  Greet(second);
  ASSERT_THAT(Chunks(second), ElementsAre(0, 4, 1));  // Resends first, new ones after.
  for (const size_t i : {size_t{1}, size_t{2}}) {
    EXPECT_EQ(second.sent[i].header, first.sent[i + 1].header);
    EXPECT_EQ(second.sent[i].payload, first.sent[i + 1].payload);
    EXPECT_EQ(second.sent[i].landing.data(), first.sent[i + 1].landing.data());
  }
  endpoint_.Answer(second, 1, ReplyStatus::kDuplicate, 5, 0x11);
  ASSERT_EQ(events_.done.size(), 2U);
  EXPECT_EQ(events_.done[1].status, ReplyStatus::kOk);
  EXPECT_EQ(events_.done[1].resends, 1U);
  EXPECT_EQ(landing_[0][0], std::byte{0x11});
  EXPECT_EQ(core_->stats().resends, 2U);
  EXPECT_EQ(core_->stats().duplicates, 1U);
}

TEST_F(ClientCoreTest, CreditIsWholeAgainAfterACut) {
  CoreOptions options = Options();
  options.credit_bytes = 2 * kChunkBytes;
  StartOpen(1, options);
  Submit({0, 1, 2});
  endpoint_.Take(endpoint_.last(), 1);
  endpoint_.Cut(endpoint_.last());
  RunUntil(time_.now_ns + options.backoff_min_ns);
  Greet(endpoint_.last());
  EXPECT_THAT(Chunks(endpoint_.last()), ElementsAre(0, 1));
}

TEST_F(ClientCoreTest, ReconnectsWithDoublingPausesAndJitter) {
  Start();
  std::vector<TimeNs> pauses;
  for (int attempt = 0; attempt < 10; ++attempt) {
    endpoint_.Cut(endpoint_.last());
    pauses.push_back(core_->NextDeadline() - time_.now_ns);
    RunUntil(core_->NextDeadline());
  }
  ASSERT_EQ(endpoint_.channels.size(), 11U);
  for (size_t i = 0; i < pauses.size(); ++i) {
    const TimeNs full = std::min(Options().backoff_min_ns << i, Options().backoff_max_ns);
    EXPECT_GE(pauses[i], full / 2);
    EXPECT_LE(pauses[i], full);
  }
  Greet(endpoint_.last());  // Success starts the pauses anew.
  endpoint_.Cut(endpoint_.last());
  EXPECT_LE(core_->NextDeadline() - time_.now_ns, Options().backoff_min_ns);
}

TEST_F(ClientCoreTest, AnUnansweredHelloAndARefusedConnectAreTriedAgain) {
  Start();
  endpoint_.Open(endpoint_.last());
  RunUntil(time_.now_ns + Options().connect_timeout_ns);
  EXPECT_TRUE(endpoint_.channels[0]->closed);
  ASSERT_EQ(events_.lost.size(), 1U);
  endpoint_.next_connect = ResourceExhausted("no descriptors");
  RunUntil(time_.now_ns + 3 * Options().backoff_min_ns);
  EXPECT_EQ(events_.lost.size(), 2U);
  ASSERT_EQ(endpoint_.channels.size(), 2U);
  Greet(endpoint_.last());
  EXPECT_EQ(events_.all_open, 1);
}

TEST_F(ClientCoreTest, AnAddressThatIsNoneEndsTheJob) {
  core_ = std::make_unique<ClientCore>(Options(), endpoint_, time_, events_);
  endpoint_.next_connect = InvalidArgument("not an address");
  EXPECT_EQ(core_->SetMap(Map(1, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(events_.failed.size(), 1U);
}

TEST_F(ClientCoreTest, BusyIsAskedAgainLaterAndOthersGoOn) {
  StartOpen();
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  endpoint_.Answer(channel, 1, ReplyStatus::kBusy);
  Submit({1});
  EXPECT_THAT(Chunks(channel), ElementsAre(0, 1));
  TimeNs previous_ns = 0;
  for (int again = 0; again < 4; ++again) {
    const TimeNs pause_ns = core_->NextDeadline() - time_.now_ns;
    EXPECT_GT(2 * pause_ns, previous_ns);  // Doubling, with half of it jitter.
    previous_ns = pause_ns;
    RunUntil(core_->NextDeadline());
    ASSERT_EQ(channel.sent.back().header, channel.sent[1].header);
    endpoint_.Answer(channel, channel.sent.size() - 1, ReplyStatus::kBusy);
  }
  RunUntil(core_->NextDeadline());
  endpoint_.Answer(channel, channel.sent.size() - 1, ReplyStatus::kOk);
  EXPECT_EQ(events_.done.size(), 1U);
  EXPECT_EQ(core_->stats().busy, 5U);
}

TEST_F(ClientCoreTest, AMissedRoundIsFollowedByAPlainPull) {
  StartOpen();
  FakeChannel& channel = endpoint_.last();
  Submit({3});
  endpoint_.Answer(channel, 1, ReplyStatus::kRoundClosed);
  ASSERT_EQ(channel.sent.size(), 3U);
  EXPECT_EQ(channel.sent[2].header.kind, MessageKind::kPull);
  EXPECT_EQ(channel.sent[2].header.clock, 6);  // Weights that clock 6 may see, as the push asked.
  EXPECT_TRUE(channel.sent[2].payload.empty());
  EXPECT_TRUE(events_.done.empty());
  endpoint_.Answer(channel, 2, ReplyStatus::kOk, 5, 0x77);
  ASSERT_EQ(events_.done.size(), 1U);
  EXPECT_EQ(events_.done[0].status, ReplyStatus::kRoundClosed);
  EXPECT_EQ(events_.done[0].clock, 5);
  EXPECT_EQ(landing_[3][0], std::byte{0x77});
  EXPECT_EQ(core_->stats().pushes_missed, 1U);
}

TEST_F(ClientCoreTest, ARefusedGradientStillGetsItsWeightsAndSaysSo) {
  StartOpen();
  Submit({3});
  endpoint_.Answer(endpoint_.last(), 1, ReplyStatus::kNotFinite);
  endpoint_.Answer(endpoint_.last(), 2, ReplyStatus::kOk);
  ASSERT_EQ(events_.done.size(), 1U);
  EXPECT_EQ(events_.done[0].status, ReplyStatus::kNotFinite);
}

TEST_F(ClientCoreTest, WhatTheOwnerMustDecideIsHandedToIt) {
  StartOpen();
  Submit({0, 1});
  endpoint_.Answer(endpoint_.last(), 1, ReplyStatus::kNotInitialised);
  endpoint_.Answer(endpoint_.last(), 2, ReplyStatus::kMalformed);
  ASSERT_EQ(events_.done.size(), 2U);
  EXPECT_EQ(events_.done[0].status, ReplyStatus::kNotInitialised);
  EXPECT_EQ(events_.done[0].bytes_received, 0U);
  EXPECT_EQ(events_.done[1].status, ReplyStatus::kMalformed);
  EXPECT_TRUE(events_.failed.empty());
}

TEST_F(ClientCoreTest, NotInTheViewEndsEverything) {
  StartOpen(2);
  Submit({0, 1});
  endpoint_.Answer(*endpoint_.channels[0], 1, ReplyStatus::kNotInView);
  ASSERT_EQ(events_.failed.size(), 1U);
  EXPECT_EQ(events_.failed[0].code(), StatusCode::kAborted);
  EXPECT_THAT(events_.dropped, ElementsAre(0, 1));
  for (auto& channel : endpoint_.channels) EXPECT_TRUE(channel->closed);
  EXPECT_EQ(core_->Submit(PushPull(2)).code(), StatusCode::kAborted);
  EXPECT_EQ(core_->NextDeadline(), kNever);
}

TEST_F(ClientCoreTest, AShardThatShutsDownIsConnectedAgain) {
  StartOpen();
  Submit({0});
  endpoint_.Answer(endpoint_.last(), 1, ReplyStatus::kShuttingDown);
  EXPECT_TRUE(endpoint_.channels[0]->closed);
  RunUntil(time_.now_ns + Options().backoff_min_ns);
  Greet(endpoint_.last());
  EXPECT_THAT(Chunks(endpoint_.last()), ElementsAre(0));
}

TEST_F(ClientCoreTest, ANewMapMovesOpenRequestsToTheirNewShard) {
  StartOpen(1);
  Submit({0, 1, 2});
  FakeChannel& old = endpoint_.last();
  endpoint_.Answer(old, 2, ReplyStatus::kMapChanged);
  EXPECT_THAT(events_.map_needed, ElementsAre(1U));
  ASSERT_TRUE(core_->SetMap(Map(2, 2)).ok());
  EXPECT_TRUE(old.closed);
  ASSERT_EQ(endpoint_.channels.size(), 3U);
  Greet(*endpoint_.channels[1]);
  Greet(*endpoint_.channels[2]);
  EXPECT_THAT(Chunks(*endpoint_.channels[1]), ElementsAre(0, 2));
  EXPECT_THAT(Chunks(*endpoint_.channels[2]), ElementsAre(1));
  EXPECT_EQ(endpoint_.channels[2]->sent[1].header.epoch, 2U);
  EXPECT_EQ(endpoint_.channels[2]->sent[1].payload, old.sent[2].payload);
  // Told again, as the coordinator does after a reconnect: nothing happens.
  ASSERT_TRUE(core_->SetMap(Map(2, 2)).ok());
  EXPECT_EQ(endpoint_.channels.size(), 3U);
}

TEST_F(ClientCoreTest, AShardBehindTheMapIsAskedAgain) {
  StartOpen();
  Submit({0});
  endpoint_.Answer(endpoint_.last(), 1, ReplyStatus::kMapChanged);
  RunUntil(time_.now_ns + Options().busy_pause_max_ns);
  ASSERT_EQ(endpoint_.last().sent.size(), 3U);
  EXPECT_EQ(endpoint_.last().sent[2].header, endpoint_.last().sent[1].header);
}

TEST_F(ClientCoreTest, AMapThatDoesNotFitIsRefused) {
  StartOpen();
  CoreMap map = Map(2, 1);
  map.chunk_shard.pop_back();
  EXPECT_EQ(core_->SetMap(map).code(), StatusCode::kInvalidArgument);
  map = Map(2, 1);
  map.chunk_shard[0] = 1;
  EXPECT_EQ(core_->SetMap(map).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->epoch(), 1U);
}

TEST_F(ClientCoreTest, AReplyOfTheWrongSizeFencesTheChannelAndIsAskedAgain) {
  StartOpen();
  Submit({0});
  FakeChannel& channel = endpoint_.last();
  endpoint_.handler().OnReply(
      channel, FakeEndpoint::ReplyHeader(channel.sent[1], ReplyStatus::kOk, 0, kChunkBytes / 2),
      channel.sent[1].landing.first(kChunkBytes / 2));
  EXPECT_TRUE(channel.closed);
  EXPECT_TRUE(events_.done.empty());
  ASSERT_EQ(events_.lost.size(), 1U);
  EXPECT_THAT(events_.lost[0].message(), HasSubstr("expected 64 bytes"));
  RunUntil(time_.now_ns + Options().backoff_min_ns);
  Greet(endpoint_.last());
  EXPECT_THAT(Chunks(endpoint_.last()), ElementsAre(0));
}

TEST_F(ClientCoreTest, AnswersToNothingAreCountedAndIgnored) {
  StartOpen();
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  endpoint_.Answer(channel, 1, ReplyStatus::kOk);
  endpoint_.Answer(channel, 1, ReplyStatus::kOk);
  proto::WireHeader wild = channel.sent[1].header;
  wild.kind = MessageKind::kReply;
  wild.request_id = (uint64_t{1} << 32) | 4000;
  endpoint_.handler().OnReply(channel, wild, {});
  endpoint_.handler().OnTaken(channel, wild.request_id);
  EXPECT_EQ(events_.done.size(), 1U);
  EXPECT_EQ(core_->stats().stray_replies, 2U);
}

TEST_F(ClientCoreTest, ASilentShardIsAskedForASignOfLifeAndThenCut) {
  CoreOptions options = Options();
  options.stall_report_ns = 100 * kNsPerSecond;
  options.stall_timeout_ns = 100 * kNsPerSecond;
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  RunUntil(time_.now_ns + 2 * options.probe_ns);  // One look clears the hello's answer.
  ASSERT_EQ(channel.sent.size(), 3U);
  EXPECT_EQ(channel.sent[2].header.kind, MessageKind::kHello);
  endpoint_.Answer(channel, 2, ReplyStatus::kOk);
  RunUntil(time_.now_ns + options.probe_ns);  // It lives.
  EXPECT_FALSE(channel.closed);
  RunUntil(time_.now_ns + 2 * options.probe_ns);
  EXPECT_TRUE(channel.closed);
  EXPECT_EQ(events_.all_open, 1);
}

// A payload that takes minutes on a slow link: nothing is complete, but bytes move.
TEST_F(ClientCoreTest, MovingBytesAreALifeSign) {
  const CoreOptions options = Options();
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  for (int i = 0; i < 9; ++i) {
    channel.moved_bytes += 1000;
    RunUntil(time_.now_ns + options.probe_ns);
  }
  EXPECT_FALSE(channel.closed);
  EXPECT_EQ(channel.sent.size(), 2U) << "nobody had to ask";
  RunUntil(time_.now_ns + 3 * options.probe_ns);
  EXPECT_TRUE(channel.closed) << "it stands still";
}

// The answer to a probe waits behind a large reply; meanwhile its id is not free.
TEST_F(ClientCoreTest, AnUnansweredProbeIsNotSentTwice) {
  const CoreOptions options = Options();
  StartOpen(1, options);
  FakeChannel& channel = endpoint_.last();
  Submit({0});
  RunUntil(time_.now_ns + 2 * options.probe_ns);
  ASSERT_EQ(channel.sent.size(), 3U);
  channel.moved_bytes += 1000;  // A sign of life, not the answer.
  RunUntil(time_.now_ns + options.probe_ns);
  RunUntil(time_.now_ns + options.probe_ns);
  EXPECT_EQ(channel.sent.size(), 3U);
  EXPECT_FALSE(channel.closed) << "silent for one look";
  endpoint_.Answer(channel, 2, ReplyStatus::kOk);
  RunUntil(time_.now_ns + 2 * options.probe_ns);
  EXPECT_EQ(channel.sent.size(), 4U) << "answered: the next silence asks anew";
}

TEST_F(ClientCoreTest, AnIdleLinkIsLeftAlone) {
  StartOpen();
  RunUntil(time_.now_ns + 100 * kNsPerSecond);
  EXPECT_EQ(endpoint_.last().sent.size(), 1U);
  EXPECT_FALSE(endpoint_.last().closed);
}

TEST_F(ClientCoreTest, AStallIsReportedWithItsReasonAndEnds) {
  CoreOptions options = Options();
  options.probe_ns = 1000 * kNsPerSecond;
  StartOpen(2, options);
  const TimeNs start_ns = time_.now_ns;
  Submit({3});
  FakeChannel& channel = *endpoint_.channels[1];
  RunUntil(start_ns + 4 * kNsPerSecond);
  EXPECT_TRUE(events_.waiting.empty());
  RunUntil(start_ns + 5 * kNsPerSecond);
  ASSERT_EQ(events_.waiting.size(), 1U);
  EXPECT_THAT(events_.waiting[0],
              HasSubstr("waiting 5.0 s for chunk 3 of shard 1 (fake://shard1)"));
  EXPECT_THAT(events_.waiting[0], HasSubstr("the shard has not taken it"));
  endpoint_.Take(channel, 1);
  RunUntil(start_ns + 10 * kNsPerSecond);
  ASSERT_EQ(events_.waiting.size(), 2U);
  EXPECT_THAT(events_.waiting[1], HasSubstr("a slower worker is behind"));
  endpoint_.Cut(channel);
  RunUntil(start_ns + 15 * kNsPerSecond);
  ASSERT_EQ(events_.waiting.size(), 3U);
  EXPECT_THAT(events_.waiting[2], HasSubstr("cut by the test"));
  RunUntil(start_ns + options.stall_timeout_ns);
  ASSERT_EQ(events_.failed.size(), 1U);
  EXPECT_EQ(events_.failed[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(events_.failed[0].message(), HasSubstr("gave up: waiting 60.0 s for chunk 3"));
  EXPECT_LE(events_.waiting.size(), 12U);
}

TEST_F(ClientCoreTest, AnEmptyPushCarriesNoBytes) {
  StartOpen();
  ChunkRequest request = PushPull(0);
  request.empty = true;
  request.payload = {};
  request.weight = 0;
  ASSERT_TRUE(core_->Submit(request).ok());
  const proto::WireHeader& header = endpoint_.last().sent[1].header;
  EXPECT_EQ(header.flags, proto::kFlagEmptyPush);
  EXPECT_EQ(header.codec, CodecId::kNone);
  EXPECT_EQ(header.payload_bytes, 0U);
}

}  // namespace
}  // namespace slackline::worker
