// What only shared memory has: peers that scribble or die, memory that comes and goes, and what the
// work costs in allocations, system calls and wake-ups.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "common/counting_allocator.h"
#include "common/random.h"
#include "common/thread.h"
#include "tests/transport/auto_fixture.h"
#include "tests/transport/shm_fixture.h"
#include "tests/transport/shm_raw_peer.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;
using testing::HasSubstr;

constexpr TimeNs kPatienceNs = 30 * kNsPerSecond;

// A server and a client that exchange a payload whenever a case wants to know that all is well.
class ShmTest : public testing::Test {
 protected:
  explicit ShmTest(const ShmOptions& options = {}) : fixture(options) {
    server = fixture.MakeEndpoint();
    client = fixture.MakeEndpoint();
    server->set_handler(&server_handler);
    client->set_handler(&client_handler);
    address = server->Listen("shm://127.0.0.1:0").value();
    landing_ = server->Allocate(kBytes).value();
    memory_ = client->Allocate(kBytes).value();
    server_handler.when_arriving = [this](Channel&, const WireHeader& header) {
      if (header.payload_bytes != kBytes) return Landing::Drain();
      return Landing::Into(landing_->bytes());
    };
    server_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes payload) {
      (void)at.Reply(ReplyHeader(header, payload.size()), payload);
    };
    channel = client->Connect(address, kPatienceNs).value();
    EXPECT_TRUE(PumpUntil([&] { return client_handler.opened.size() == 1; }));
  }

  bool PumpUntil(const std::function<bool()>& done) {
    return fixture.PumpUntil({client.get(), server.get()}, done);
  }
  void ExpectUndisturbed() {
    const size_t replies = client_handler.replies.size();
    const uint64_t seed = 100 + replies;
    FillPattern(memory_->bytes(), seed);
    ASSERT_TRUE(
        channel->Send(RequestHeader(seed, kBytes), memory_->bytes(), memory_->bytes()).ok());
    ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() > replies; }));
    EXPECT_TRUE(HasPattern(memory_->bytes(), seed));
    EXPECT_TRUE(client_handler.closed.empty());
  }
  // A raw peer that the server has welcomed.
  std::unique_ptr<ShmRawPeer> OpenRaw() {
    auto peer = std::make_unique<ShmRawPeer>(address);
    const size_t opened = server_handler.opened.size();
    peer->SayHello();
    EXPECT_TRUE(PumpUntil([&] { return server_handler.opened.size() > opened; }));
    return peer;
  }
  // Pumps until the server has closed its `count`-th channel; gives its status.
  Status ClosedStatus(size_t count = 1) {
    EXPECT_TRUE(PumpUntil([&] { return server_handler.closed.size() >= count; }));
    return server_handler.closed.size() < count ? OkStatus() : server_handler.closed.back().second;
  }
  static ShmEndpoint& Shm(Endpoint& endpoint) { return dynamic_cast<ShmEndpoint&>(endpoint); }

  static constexpr size_t kBytes = 100'000;

  ShmFixture fixture;
  Recorder server_handler, client_handler;
  std::unique_ptr<Endpoint> server, client;
  std::string address;
  Channel* channel = nullptr;

 private:
  std::unique_ptr<Region> landing_, memory_;
};

// ---- Peers that say or write what they should not ----

TEST_F(ShmTest, ARawPeerThatBehavesIsServed) {
  auto peer = OpenRaw();
  peer->Write(RequestHeader(1, 0, MessageKind::kPull));
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == 1; }));
  EXPECT_EQ(peer->segment().replies.tail.value.load(), 1u);
}

TEST_F(ShmTest, MoreMessagesThanTheRingHoldsAreRefused) {
  auto peer = OpenRaw();
  peer->segment().requests.tail.value.store(kRequestSlots + 1);
  EXPECT_EQ(ClosedStatus().code(), StatusCode::kDataLoss);
  EXPECT_EQ(server->stats().protocol_errors, 1u);
  ExpectUndisturbed();
}

TEST_F(ShmTest, RepliesThatWereNotWrittenCannotBeRead) {
  auto peer = OpenRaw();
  peer->segment().replies.head.value.store(1);
  EXPECT_THAT(ClosedStatus().message(), HasSubstr("not written"));
  ExpectUndisturbed();
}

TEST_F(ShmTest, EveryDamagedByteOfAHeaderIsRefused) {
  for (size_t i = 0; i < proto::kWireHeaderBytes; i += 7) {
    auto peer = OpenRaw();
    proto::EncodeWireHeader(RequestHeader(1, 0, MessageKind::kPull),
                            peer->segment().requests.slots[0].header);
    peer->segment().requests.slots[0].header[i] ^= std::byte{0x40};
    peer->segment().requests.tail.value.store(1);
    EXPECT_FALSE(ClosedStatus(i / 7 + 1).ok());
  }
  EXPECT_TRUE(server_handler.requests.empty());
  ExpectUndisturbed();
}

TEST_F(ShmTest, MemoryThatWasNotSharedIsNotRead) {
  const std::unique_ptr<Region> own = client->Allocate(kBytes).value();
  const Fd memory = CreateSegmentMemory(1 << 20).value();
  struct Case {
    uint64_t region, offset;
  };
  size_t closed = 0;
  for (const Case& bad : {Case{0, 0}, Case{7, 0}, Case{5, (1 << 20) - kBytes + 1},
                          Case{5, UINT64_MAX - kBytes + 1}, Case{5 + kMaxShmRegions, 0}}) {
    SCOPED_TRACE(bad.offset);
    auto peer = OpenRaw();
    peer->Say({.kind = ShmKind::kRegion, .id = 5, .size_bytes = 1 << 20}, memory.get());
    peer->Write(RequestHeader(1, kBytes), bad.region, bad.offset);
    EXPECT_EQ(ClosedStatus(++closed).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(server_handler.requests.empty());
  ExpectUndisturbed();
}

TEST_F(ShmTest, MemoryThatCouldShrinkIsRefused) {
  auto peer = OpenRaw();
  const Fd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 1 << 20), 0);
  peer->Say({.kind = ShmKind::kRegion, .id = 5, .size_bytes = 1 << 20}, loose.get());
  EXPECT_THAT(ClosedStatus().message(), HasSubstr("sealed"));
  ExpectUndisturbed();
}

TEST_F(ShmTest, MemoryOfAnotherSizeOrPlaceIsRefused) {
  const Fd memory = CreateSegmentMemory(4096).value();
  const std::vector<std::vector<ShmMessage>> bad = {
      {{.kind = ShmKind::kRegion, .id = 5, .size_bytes = 4097}},
      {{.kind = ShmKind::kRegion, .id = 5, .size_bytes = 0}},
      {{.kind = ShmKind::kRegion, .id = 0, .size_bytes = 4096}},
      {{.kind = ShmKind::kRegion, .id = 5, .size_bytes = UINT64_MAX}},
      {{.kind = ShmKind::kRegion, .id = 5, .size_bytes = 4096},
       {.kind = ShmKind::kRegion, .id = 5 + kMaxShmRegions, .size_bytes = 4096}},
      {{.kind = ShmKind::kForget, .id = 5}},
      {{.kind = ShmKind::kWelcome}},
      {{.kind = ShmKind::kHello, .size_bytes = sizeof(SharedSegment)}}};
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    auto peer = OpenRaw();
    for (const ShmMessage& message : bad[i]) {
      const bool passes = message.kind == ShmKind::kRegion || message.kind == ShmKind::kHello;
      peer->Say(message, passes ? memory.get() : -1);
    }
    EXPECT_FALSE(ClosedStatus(i + 1).ok());
  }
  ExpectUndisturbed();
}

TEST_F(ShmTest, StrangersAtTheDoorAreTurnedAway) {
  ShmRawPeer old(address);
  old.Say({.version = 9, .kind = ShmKind::kHello, .size_bytes = sizeof(SharedSegment)},
          old.memory().get());
  ShmRawPeer small(address);
  small.Say({.kind = ShmKind::kHello, .size_bytes = 4096}, small.memory().get());
  ShmRawPeer bare(address);
  bare.Say({.kind = ShmKind::kHello, .size_bytes = sizeof(SharedSegment)});
  ASSERT_TRUE(PumpUntil([&] { return server->stats().protocol_errors == 3; }));
  const ShmReceived heard = old.Hear();
  EXPECT_EQ(heard.what, ShmReceived::What::kMessage);
  EXPECT_EQ(heard.message.kind, ShmKind::kWelcome) << "it carries the version";
  EXPECT_EQ(server_handler.opened.size(), 1u);
  EXPECT_TRUE(server_handler.closed.empty()) << "who never opened is not reported";
  ExpectUndisturbed();
}

TEST_F(ShmTest, ScribblingClosesOnlyItsOwnChannel) {
  Rng rng(7);
  for (size_t turn = 0; turn < 30; ++turn) {
    auto peer = OpenRaw();
    for (int i = 0; i < 20; ++i) {
      const size_t at = rng.Below(sizeof(SharedSegment) / 8) * 8;
      const uint64_t word = rng.Below(2) == 0 ? rng.Next() : rng.Below(2000);
      std::memcpy(peer->segment_bytes() + at, &word, sizeof word);
      if (rng.Below(3) == 0) peer->segment().requests.tail.value.store(rng.Below(3));
      server->Poll(0);
    }
    ExpectUndisturbed();
  }
}

// ---- Deaths ----

// Runs `body` in a process of its own, which is killed at the end of the test.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(0);
    }
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

TEST_F(ShmTest, AKilledWorkerIsNoticedAndOthersGoOn) {
  Child child([&] {
    ShmFixture own;
    Recorder handler;
    const auto endpoint = own.MakeEndpoint();
    endpoint->set_handler(&handler);
    Channel* mine = endpoint->Connect(address, kPatienceNs).value();
    const auto memory = endpoint->Allocate(kBytes).value();
    handler.when_opened = [&](Channel&) {
      (void)mine->Send(RequestHeader(1, kBytes), memory->bytes(), memory->bytes());
    };
    for (;;) endpoint->Poll(kNsPerSecond);
  });
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == 1; }));
  child.Kill();
  EXPECT_EQ(ClosedStatus().code(), StatusCode::kUnavailable);
  ExpectUndisturbed();
}

TEST_F(ShmTest, AKilledShardIsNoticedAndItsNameIsFree) {
  const std::string there = "shm://127.0.0.1:29";
  Child child([&] {
    ShmFixture own;
    Recorder handler;
    const auto endpoint = own.MakeEndpoint();
    endpoint->set_handler(&handler);
    (void)endpoint->Listen(there);
    for (;;) endpoint->Poll(kNsPerSecond);
  });
  // The child may not listen yet: connect until it does.
  while (client_handler.opened.size() < 2) {
    const size_t closed = client_handler.closed.size();
    (void)client->Connect(there, kPatienceNs).value();
    ASSERT_TRUE(PumpUntil([&] {
      return client_handler.opened.size() == 2 || client_handler.closed.size() > closed;
    }));
  }
  const size_t closed = client_handler.closed.size();
  child.Kill();
  ASSERT_TRUE(PumpUntil([&] { return client_handler.closed.size() > closed; }));
  EXPECT_EQ(client_handler.closed.back().second.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(server->Listen(there)) << "nothing is left of the dead one";
}

// ---- Memory ----

TEST_F(ShmTest, AForeignPayloadIsRefused) {
  std::vector<std::byte> heap(64);
  EXPECT_EQ(channel->Send(RequestHeader(1, 64), heap, {}).code(), StatusCode::kInvalidArgument);
  ExpectUndisturbed();
}

TEST_F(ShmTest, RegionsComeAndGo) {
  for (uint64_t i = 0; i < 3 * kMaxShmRegions; ++i) {
    const std::unique_ptr<Region> region = client->Allocate(kBytes).value();
    FillPattern(region->bytes(), i);
    const size_t replies = client_handler.replies.size();
    ASSERT_TRUE(channel->Send(RequestHeader(i, kBytes), region->bytes(), region->bytes()).ok());
    ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() > replies; }));
    ASSERT_TRUE(HasPattern(region->bytes(), i));
  }
  EXPECT_TRUE(server_handler.closed.empty());
}

TEST_F(ShmTest, RegionsAreBounded) {
  std::vector<std::unique_ptr<Region>> regions;
  for (;;) {
    auto region = client->Allocate(1);
    if (!region) {
      EXPECT_EQ(region.error().code(), StatusCode::kResourceExhausted);
      break;
    }
    regions.push_back(std::move(*region));
  }
  EXPECT_EQ(regions.size(), kMaxShmRegions - 1) << "one is the fixture's";
  ExpectUndisturbed();
}

// What a peer gets of our memory it can read, and that is all.
TEST_F(ShmTest, NobodyElseCanWriteARegion) {
  const std::unique_ptr<MappedRegion> region = [] {
    static uint64_t in_use = 0;
    return MappedRegion::Create(4096, 1 << 20, &in_use, MappedRegion::Sharing::kReadable).value();
  }();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd(), 0), MAP_FAILED);
  EXPECT_LT(write(region->fd(), "x", 1), 0);
  EXPECT_NE(ftruncate(region->fd(), 0), 0);
  void* readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, region->fd(), 0);
  EXPECT_NE(readable, MAP_FAILED);
  munmap(readable, 4096);
}

// ---- What it costs ----

class BusyShmTest : public ShmTest {
 protected:
  BusyShmTest() : ShmTest({.poll_mode = PollMode::kBusy}) {}
};

TEST_F(BusyShmTest, NothingAllocatesAndNobodyRingsWhileBothAreAwake) {
  const auto in = server->Allocate(kBytes).value();
  const auto out = client->Allocate(kBytes).value();
  // Handlers of the test itself that allocate nothing.
  class Echo final : public Handler {
   public:
    explicit Echo(MutableBytes landing) : landing_(landing) {}
    void OnOpened(Channel&) override {}
    void OnClosed(Channel&, const Status&) override {}
    Landing OnRequestArriving(Channel&, const WireHeader&) override {
      return Landing::Into(landing_);
    }
    void OnRequest(Channel& at, const WireHeader& header, MutableBytes payload) override {
      (void)at.SendTaken(header.request_id);
      WireHeader reply = header;
      reply.kind = MessageKind::kReply;
      (void)at.Reply(reply, payload);
    }
    void OnReply(Channel&, const WireHeader&, MutableBytes) override { ++replies; }
    uint64_t replies = 0;

   private:
    MutableBytes landing_;
  } echo(in->bytes());
  server->set_handler(&echo);
  client->set_handler(&echo);
  const auto exchange = [&] {
    const uint64_t before = echo.replies;
    ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), out->bytes(), out->bytes()).ok());
    while (echo.replies == before) {
      server->Poll(0);
      client->Poll(0);
    }
  };
  for (int i = 0; i < 10; ++i) exchange();
  const uint64_t rings = Shm(*server).rings() + Shm(*client).rings();
  const uint64_t allocations = ThreadAllocations().allocations;
  for (int i = 0; i < 3000; ++i) exchange();
  EXPECT_EQ(ThreadAllocations().allocations, allocations);
  EXPECT_EQ(Shm(*server).rings() + Shm(*client).rings(), rings);
  EXPECT_EQ(client->stats().payload_bytes_copied + server->stats().payload_bytes_copied, 0u);
}

// Both ends sleep whenever they can. A lost wake-up would show as a wait of the whole patience.
void ExpectEverySleeperIsWoken(TransportFixture& fixture) {
  constexpr size_t kBytes = 10'000;
  Recorder server_handler, client_handler;
  const auto server = fixture.MakeEndpoint();
  const auto client = fixture.MakeEndpoint();
  server->set_handler(&server_handler);
  client->set_handler(&client_handler);
  const auto in = server->Allocate(kBytes).value();
  const auto out = client->Allocate(kBytes).value();
  server_handler.when_arriving = [&](Channel&, const WireHeader&) {
    return Landing::Into(in->bytes());
  };
  server_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes payload) {
    (void)at.Reply(ReplyHeader(header, payload.size()), payload);
  };
  Channel* channel =
      client->Connect(server->Listen(fixture.ListenAddress()).value(), kPatienceNs).value();
  std::atomic<bool> stop{false};
  Thread shard("shard", [&] {
    while (!stop.load()) server->Poll(kPatienceNs);
  });
  const SteadyTimeSource time;
  const TimeNs start_ns = time.NowNs();
  while (client_handler.opened.empty()) client->Poll(kPatienceNs);
  for (uint64_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(channel->Send(RequestHeader(i, kBytes), out->bytes(), out->bytes()).ok());
    while (client_handler.replies.size() <= i) client->Poll(kPatienceNs);
  }
  EXPECT_LT(time.NowNs() - start_ns, kPatienceNs) << "somebody slept through";
  stop.store(true);
  server->Wake();
  shard.Join();
}

TEST(ShmSleepTest, EverySleeperIsWoken) {
  ShmFixture fixture({.poll_mode = PollMode::kSleep});
  ExpectEverySleeperIsWoken(fixture);
}

TEST(ShmSleepTest, EverySleeperIsWokenInAnEndpointOfSeveralTransports) {
  AutoFixture fixture(PollMode::kSleep);
  ExpectEverySleeperIsWoken(fixture);
}

void ExpectWakeEndsALongPoll(Endpoint& endpoint) {
  Recorder handler;
  endpoint.set_handler(&handler);
  const SteadyTimeSource time;
  const TimeNs start_ns = time.NowNs();
  for (int turn = 0; turn < 100; ++turn) {
    Thread poller("poller", [&] { endpoint.Wake(); });
    endpoint.Poll(600 * kNsPerSecond);
  }
  EXPECT_LT(time.NowNs() - start_ns, 60 * kNsPerSecond);
}

TEST(ShmSleepTest, WakeEndsALongPoll) { ExpectWakeEndsALongPoll(*ShmFixture().MakeEndpoint()); }

TEST(ShmSleepTest, WakeEndsALongPollOfSeveralTransports) {
  Recorder handler;
  const auto endpoint = AutoFixture().MakeEndpoint();
  endpoint->set_handler(&handler);
  ASSERT_TRUE(endpoint->Listen("auto://127.0.0.1:0"));  // All of them are in use.
  ExpectWakeEndsALongPoll(*endpoint);
}

// A second Wake() that comes while the first one is being taken note of writes nothing; the Poll
// that takes note returns for both.
TEST(ShmSleepTest, AWakeThatFindsAnotherPendingIsNotLost) {
  Recorder handler;
  const auto endpoint = ShmFixture({.poll_mode = PollMode::kSleep}).MakeEndpoint();
  endpoint->set_handler(&handler);
  for (int turn = 0; turn < 10; ++turn) {
    endpoint->Wake();
    endpoint->Wake();
    const SteadyTimeSource time;
    const TimeNs start_ns = time.NowNs();
    endpoint->Poll(600 * kNsPerSecond);
    EXPECT_LT(time.NowNs() - start_ns, 60 * kNsPerSecond);
  }
}

// ---- Which transport is taken ----

class AutoTest : public testing::Test {
 protected:
  AutoTest() {
    server->set_handler(&server_handler);
    client->set_handler(&client_handler);
    address = server->Listen("auto://127.0.0.1:0").value();
  }
  bool PumpUntil(const std::function<bool()>& done) {
    return fixture.PumpUntil({client.get(), server.get()}, done);
  }
  // Connects until it opens, once for each way at most; the peer's address, or "".
  std::string Take(const std::string& to) {
    for (int i = 0; i < 2; ++i) {
      const size_t opened = client_handler.opened.size();
      const size_t closed = client_handler.closed.size();
      const auto channel = client->Connect(to, kPatienceNs);
      if (!channel) return "";
      EXPECT_TRUE(PumpUntil([&] {
        return client_handler.opened.size() > opened || client_handler.closed.size() > closed;
      }));
      if (client_handler.opened.size() > opened) return std::string((*channel)->peer());
    }
    return "";
  }
  // The part of `address` with this scheme.
  std::string Way(const std::string& scheme) {
    return ParseAddress(address, scheme).value().ToString();
  }

  AutoFixture fixture;
  Recorder server_handler, client_handler;
  std::unique_ptr<Endpoint> server = fixture.MakeEndpoint(), client = fixture.MakeEndpoint();
  std::string address;
};

TEST_F(AutoTest, OneHostSharesMemory) { EXPECT_EQ(Take(address), Way("shm")); }

TEST_F(AutoTest, AnotherHostIsReachedByTcp) {
  const std::string other = "shm://0123456789abcdef:4711," + Way("tcp");
  EXPECT_EQ(Take(other), Way("tcp"));
}

TEST_F(AutoTest, AWayThatFailsIsPassedOver) {
  Address nobody = ParseAddress(address, "shm").value();
  nobody.port = 1;
  EXPECT_EQ(Take(nobody.ToString() + "," + Way("tcp")), Way("tcp"));
  EXPECT_EQ(client_handler.closed.size(), 1u) << "the first way was tried";
}

TEST_F(AutoTest, OneTransportTakesItsWayOfAList) {
  Recorder handler;
  const auto tcp = CreateEndpoint("tcp").value();
  tcp->set_handler(&handler);
  EXPECT_EQ(tcp->Connect(address, kPatienceNs).value()->peer(), Way("tcp"));
}

}  // namespace
}  // namespace slackline::transport
