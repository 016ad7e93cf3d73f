// What only TCP has: strangers at the port, time limits, what the work costs in allocations and
// system calls, and partial reads and writes everywhere.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>

#include "common/counting_allocator.h"
#include "common/random.h"
#include "common/thread.h"
#include "tests/transport/raw_socket.h"
#include "tests/transport/tcp_fixture.h"
#include "transport/factory.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;
using testing::HasSubstr;

constexpr TimeNs kPatienceNs = 30 * kNsPerSecond;

using HeaderBytes = std::array<std::byte, proto::kWireHeaderBytes>;

HeaderBytes Encode(const WireHeader& header) {
  HeaderBytes bytes;
  proto::EncodeWireHeader(header, bytes);
  return bytes;
}

// A server and a client that exchange a message whenever a case wants to know that all is well.
class TcpTest : public testing::Test {
 protected:
  explicit TcpTest(const TcpOptions& options = {}) : fixture(options) {
    server = fixture.MakeEndpoint();
    client = fixture.MakeEndpoint();
    server->set_handler(&server_handler);
    client->set_handler(&client_handler);
    address = server->Listen("tcp://127.0.0.1:0").value();
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
  // The well-behaved channel sends a payload there and back.
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
  // Pumps until the server has closed `count` channels.
  void ExpectClosed(size_t count) {
    ASSERT_TRUE(PumpUntil([&] { return server_handler.closed.size() >= count; }));
    EXPECT_EQ(server_handler.closed.size(), count);
  }
  const TcpIoStats& ClientIo() { return dynamic_cast<TcpEndpoint&>(*client).io_stats(); }

  static constexpr size_t kBytes = 100'000;

  TcpFixture fixture;
  Recorder server_handler, client_handler;
  std::unique_ptr<Endpoint> server, client;
  std::string address;
  Channel* channel = nullptr;

 private:
  std::unique_ptr<Region> landing_, memory_;
};

// ---- Strangers ----

TEST_F(TcpTest, AWebBrowserIsClosedByItsFirstByte) {
  RawSocket stranger(address);
  stranger.Write("G");
  ExpectClosed(1);
  EXPECT_EQ(server_handler.closed[0].second.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(stranger.WaitForClose());
  EXPECT_EQ(server->stats().protocol_errors, 1u);
  ExpectUndisturbed();
}

TEST_F(TcpTest, RandomBytesAreRefused) {
  Rng rng(3);
  for (size_t turn = 1; turn <= 50; ++turn) {
    RawSocket stranger(address);
    std::vector<std::byte> bytes(1 + rng.Below(2000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Below(256));
    bytes[0] = std::byte{0};
    stranger.Write(bytes);
    ExpectClosed(turn);
  }
  ExpectUndisturbed();
}

TEST_F(TcpTest, EveryDamagedByteOfAHeaderIsRefused) {
  const HeaderBytes good = Encode(RequestHeader(1, 0, MessageKind::kPull));
  for (size_t i = 0; i < good.size(); ++i) {
    HeaderBytes bad = good;
    bad[i] ^= std::byte{0x40};
    RawSocket stranger(address);
    stranger.Write(bad);
    ExpectClosed(i + 1);
  }
  EXPECT_TRUE(server_handler.requests.empty());
  ExpectUndisturbed();
}

TEST_F(TcpTest, TruncatedFramesHarmNobody) {
  const HeaderBytes header = Encode(RequestHeader(1, kBytes));
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.resize(frame.size() + kBytes);
  const std::vector<size_t> lengths = {
      1, 3, 4, 64, 127, 128, 129, 128 + kBytes / 2, 128 + kBytes - 1};
  for (size_t i = 0; i < lengths.size(); ++i) {
    {
      RawSocket stranger(address);
      stranger.Write(ConstBytes(frame).first(lengths[i]));
    }
    ExpectClosed(i + 1);
    EXPECT_EQ(server_handler.closed[i].second.code(), StatusCode::kUnavailable);
  }
  EXPECT_TRUE(server_handler.requests.empty());
  ExpectUndisturbed();
}

TEST_F(TcpTest, AResetIsAnOrdinaryEnd) {
  {
    RawSocket stranger(address);
    stranger.Write(Encode(RequestHeader(1, kBytes)));
    ASSERT_TRUE(PumpUntil([&] { return server_handler.asked == 1; }));
    stranger.ResetOnClose();
  }
  ExpectClosed(1);
  EXPECT_EQ(server_handler.closed[0].second.code(), StatusCode::kUnavailable);
  ExpectUndisturbed();
}

TEST_F(TcpTest, AnAbsurdLengthIsRefused) {
  WireHeader header = RequestHeader(1, 0);
  header.payload_bytes = proto::kMaxPayloadBytes + 1;
  header.codec = CodecId::kFp32;
  RawSocket stranger(address);
  stranger.Write(Encode(header));
  ExpectClosed(1);
  EXPECT_EQ(server_handler.asked, 0u);
  ExpectUndisturbed();
}

TEST_F(TcpTest, AMessageOfTheWrongDirectionIsRefused) {
  RawSocket stranger(address);
  stranger.Write(Encode(ReplyHeader(RequestHeader(1, 0), 0)));
  ExpectClosed(1);
  EXPECT_EQ(server_handler.closed[0].second.code(), StatusCode::kInvalidArgument);
  ExpectUndisturbed();
}

TEST_F(TcpTest, AnIdThatIsOpenIsRefused) {
  server_handler.when_request = {};
  RawSocket stranger(address);
  stranger.Write(Encode(RequestHeader(1, 0, MessageKind::kPull)));
  stranger.Write(Encode(RequestHeader(1, 0, MessageKind::kPull)));
  ExpectClosed(1);
  EXPECT_THAT(server_handler.closed[0].second.message(), HasSubstr("request id 1"));
}

TEST_F(TcpTest, APeerWithTooManyOpenRequestsIsClosed) {
  server_handler.when_request = {};
  RawSocket stranger(address);
  for (uint64_t id = 0; id <= kMaxOpenRequests; ++id) {
    stranger.Write(Encode(RequestHeader(id, 0, MessageKind::kPull)));
  }
  ExpectClosed(1);
  EXPECT_EQ(server_handler.requests.size(), kMaxOpenRequests);
  EXPECT_THAT(server_handler.closed[0].second.message(), HasSubstr("requests open"));
}

// Replies that the peer does not read count as open: it cannot make the server hoard them.
TEST_F(TcpTest, APeerThatNeverReadsIsBounded) {
  RawSocket stranger(address);
  uint64_t sent = 0;
  HeaderBytes request = Encode(RequestHeader(0, kBytes));
  const std::vector<std::byte> payload(kBytes);
  ASSERT_TRUE(PumpUntil([&] {
    // The server reads all it gets, so that these blocking writes always end.
    for (int burst = 0; burst < 4 && server_handler.closed.empty(); ++burst) {
      request = Encode(RequestHeader(sent++, kBytes));
      if (!stranger.Write(request) || !stranger.Write(payload)) break;
      for (int turn = 0; turn < 8; ++turn) server->Poll(0);
    }
    return !server_handler.closed.empty();
  }));
  EXPECT_THAT(server_handler.closed[0].second.message(), HasSubstr("requests open"));
  ExpectUndisturbed();
}

TEST_F(TcpTest, ConnectionsBeyondTheBoundAreTurnedAway) {
  std::vector<std::unique_ptr<RawSocket>> strangers;
  // One place is the well-behaved client's.
  for (size_t i = 0; i + 1 < kMaxTcpChannels; ++i) {
    strangers.push_back(std::make_unique<RawSocket>(address));
    const size_t expected = i + 2;
    ASSERT_TRUE(PumpUntil([&] { return server_handler.opened.size() == expected; })) << i;
  }
  RawSocket one_more(address);
  ASSERT_TRUE(PumpUntil([&] { return one_more.ClosedNow(); }));
  EXPECT_EQ(server_handler.opened.size(), kMaxTcpChannels);
  strangers.clear();
  ExpectClosed(kMaxTcpChannels - 1);
  ExpectUndisturbed();
}

// ---- Time limits ----

TcpOptions Impatient() {
  TcpOptions options;
  options.first_header_timeout_ns = 50 * kNsPerMs;
  options.stall_timeout_ns = 50 * kNsPerMs;
  return options;
}

class ImpatientTcpTest : public TcpTest {
 protected:
  ImpatientTcpTest() : TcpTest(Impatient()) {
    // The well-behaved client speaks before its time is up, however slow the machine.
    ExpectUndisturbed();
  }
};

TEST_F(ImpatientTcpTest, ASilentConnectionIsClosed) {
  RawSocket stranger(address);
  ExpectClosed(1);
  EXPECT_THAT(server_handler.closed[0].second.message(), HasSubstr("no message within 50 ms"));
  EXPECT_TRUE(stranger.WaitForClose());
  ExpectUndisturbed();
}

TEST_F(ImpatientTcpTest, HalfAHeaderAloneIsClosed) {
  RawSocket stranger(address);
  const HeaderBytes header = Encode(RequestHeader(1, 0, MessageKind::kPull));
  stranger.Write(ConstBytes(header).first(60));
  ExpectClosed(1);
  ExpectUndisturbed();
}

TEST_F(ImpatientTcpTest, AStallInsideAPayloadIsClosed) {
  RawSocket stranger(address);
  stranger.Write(Encode(RequestHeader(1, kBytes)));
  ExpectClosed(1);
  EXPECT_THAT(server_handler.closed[0].second.message(), HasSubstr("middle of a message"));
  ExpectUndisturbed();
}

TEST_F(ImpatientTcpTest, APauseBetweenMessagesIsNotAStall) {
  RawSocket silent(address);
  // When the silent one is closed for its 50 ms, the client has been idle for longer.
  ExpectClosed(1);
  EXPECT_EQ(server_handler.closed[0].first, server_handler.opened[1]);
  ExpectUndisturbed();
}

// A host that does not answer at all: its listen queue is full and nobody accepts.
TEST(TcpConnectTest, AConnectWithoutAnswerIsGivenUpInTime) {
  TcpFixture fixture;
  Recorder handler;
  const std::unique_ptr<Endpoint> endpoint = fixture.MakeEndpoint();
  endpoint->set_handler(&handler);
  // 192.0.2.0/24 is reserved for documentation: packets to it vanish, or have no route.
  ASSERT_TRUE(endpoint->Connect("tcp://192.0.2.1:9", 50 * kNsPerMs));
  ASSERT_TRUE(fixture.PumpUntil({endpoint.get()}, [&] { return !handler.closed.empty(); }));
  EXPECT_EQ(handler.closed[0].second.code(), StatusCode::kUnavailable);
  EXPECT_THAT(handler.closed[0].second.message(), HasSubstr("tcp://192.0.2.1:9"));
}

TEST(TcpConnectTest, NamesAreLookedUp) {
  TcpFixture fixture;
  Recorder server_handler, client_handler;
  const auto server = fixture.MakeEndpoint();
  const auto client = fixture.MakeEndpoint();
  server->set_handler(&server_handler);
  client->set_handler(&client_handler);
  const std::string address = server->Listen("tcp://127.0.0.1:0").value();
  const std::string port = address.substr(address.rfind(':'));
  ASSERT_TRUE(client->Connect("tcp://localhost" + port, kPatienceNs));
  ASSERT_TRUE(client->Connect("tcp://no-such-host.invalid" + port, kPatienceNs));
  ASSERT_TRUE(fixture.PumpUntil({client.get(), server.get()}, [&] {
    return !client_handler.opened.empty() && !client_handler.closed.empty();
  }));
  EXPECT_EQ(client_handler.closed[0].second.code(), StatusCode::kUnavailable);
}

// ---- Threads ----

TEST(TcpWakeTest, WakeEndsALongPoll) {
  TcpFixture fixture;
  Recorder handler;
  const std::unique_ptr<Endpoint> endpoint = fixture.MakeEndpoint();
  endpoint->set_handler(&handler);
  const SteadyTimeSource time;
  const TimeNs start_ns = time.NowNs();
  for (int turn = 0; turn < 100; ++turn) {
    Thread poller("poller", [&] { endpoint->Wake(); });
    endpoint->Poll(600 * kNsPerSecond);
  }
  EXPECT_LT(time.NowNs() - start_ns, 60 * kNsPerSecond);
}

// A client must be able to tell a slow link from a dead one in the middle of a message.
TEST_F(TcpTest, PartsOfMessagesCountAsMoved) {
  RawSocket stranger(address);
  ASSERT_TRUE(PumpUntil([&] { return server_handler.opened.size() == 2; }));
  const Channel& there = *server_handler.opened.back();
  const uint64_t before = there.bytes_moved();
  const HeaderBytes header = Encode(RequestHeader(1, kBytes));
  stranger.Write(ConstBytes(header));
  stranger.Write(std::vector<std::byte>(kBytes / 2));
  ASSERT_TRUE(
      PumpUntil([&] { return there.bytes_moved() >= before + header.size() + kBytes / 2; }));
  EXPECT_TRUE(server_handler.requests.empty()) << "the message is not complete";
  const uint64_t here = channel->bytes_moved();
  ExpectUndisturbed();
  // Read and acknowledged: the payload came back, so both ways count.
  EXPECT_GE(channel->bytes_moved(), here + 2 * kBytes);
}

// ---- Cost ----

// Keeps a window of push-pulls in flight and records nothing, so that what allocates is the
// transport.
class LeanPair : public Handler {
 public:
  static constexpr size_t kWindow = 8;

  explicit LeanPair(size_t payload_bytes, const TcpOptions& options = {})
      : payload_bytes_(payload_bytes) {
    server = TcpEndpoint::Create(options).value();
    client = TcpEndpoint::Create(options).value();
    server->set_handler(this);
    client->set_handler(this);
    landings_ = server->Allocate(kWindow * payload_bytes).value();
    memory_ = client->Allocate(kWindow * payload_bytes).value();
    const std::string address = server->Listen("tcp://127.0.0.1:0").value();
    channel_ = client->Connect(address, kPatienceNs).value();
    while (opened_ < 2) Pump();
  }

  void Begin(uint64_t requests) {
    replies = 0;
    wanted_ = requests;
    sent_ = 0;
    while (sent_ < std::min<uint64_t>(kWindow, requests)) Ask(sent_);
  }
  void Run(uint64_t requests) {
    Begin(requests);
    while (replies < requests) Pump();
  }
  void Pump() {
    if (client->Poll(0) + server->Poll(0) == 0) client->Poll(kNsPerMs);
  }

  void OnOpened(Channel&) override { ++opened_; }
  void OnClosed(Channel&, const Status& status) override { ADD_FAILURE() << status; }
  Landing OnRequestArriving(Channel&, const WireHeader& header) override {
    return Landing::Into(Slot(*landings_, header.request_id));
  }
  void OnRequest(Channel& at, const WireHeader& header, MutableBytes payload) override {
    (void)at.SendTaken(header.request_id);
    (void)at.Reply(ReplyHeader(header, payload.size()), payload);
  }
  void OnReply(Channel&, const WireHeader& header, MutableBytes) override {
    ++replies;
    if (sent_ < wanted_) Ask(header.request_id);
  }

  std::unique_ptr<Endpoint> server, client;
  uint64_t replies = 0;

 private:
  MutableBytes Slot(const Region& region, uint64_t slot) const {
    return region.bytes().subspan(slot * payload_bytes_, payload_bytes_);
  }
  void Ask(uint64_t slot) {
    ++sent_;
    const MutableBytes memory = Slot(*memory_, slot);
    ASSERT_TRUE(channel_->Send(RequestHeader(slot, payload_bytes_), memory, memory).ok());
  }

  const size_t payload_bytes_;
  std::unique_ptr<Region> landings_, memory_;
  Channel* channel_ = nullptr;
  int opened_ = 0;
  uint64_t wanted_ = 0, sent_ = 0;
};

TEST(TcpCostTest, PushPullsAllocateNothing) {
  for (const size_t payload_bytes : {64ul, 4096ul, 262'144ul}) {
    SCOPED_TRACE(payload_bytes);
    LeanPair pair(payload_bytes);
    pair.Run(100);
    const AllocationCounts before = ThreadAllocations();
    pair.Run(1000);
    const AllocationCounts after = ThreadAllocations();
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.frees, before.frees);
    EXPECT_EQ(pair.server->stats().payload_bytes_copied, 0u);
    EXPECT_EQ(pair.client->stats().payload_bytes_copied, 0u);
  }
}

TEST(TcpCostTest, SleepingAllocatesNothing) {
  LeanPair pair(64);
  pair.Run(10);
  for (int turn = 0; turn < 3; ++turn) pair.client->Poll(kNsPerMs);
  const AllocationCounts before = ThreadAllocations();
  for (int turn = 0; turn < 20; ++turn) {
    pair.client->Wake();
    pair.client->Poll(kNsPerMs);
    pair.client->Poll(kNsPerMs);
  }
  EXPECT_EQ(ThreadAllocations().allocations, before.allocations);
}

// Who waits for a throttled link sleeps until there is something to move, and takes it in pieces.
TEST(TcpCostTest, AThrottledLinkIsNotWaitedForInALoop) {
  constexpr double kGbps = 0.5;
  constexpr size_t kBytes = 262'144;
  constexpr uint64_t kRequests = 16;
  TcpOptions options;
  options.link_gbps = kGbps;
  LeanPair pair(kBytes, options);
  pair.Run(4);
  const auto& io = dynamic_cast<TcpEndpoint&>(*pair.client).io_stats();
  const TcpIoStats before = io;
  const AllocationCounts allocations = ThreadAllocations();
  pair.Begin(kRequests);
  uint64_t turns = 0;
  for (; pair.replies < kRequests; ++turns) pair.Pump();
  EXPECT_EQ(ThreadAllocations().allocations, allocations.allocations);
  // A piece is what the link carries in a quarter of a millisecond.
  const double pieces = 2 * kRequests * kBytes / (kGbps / 8 * Pacer::kBurstNs);
  EXPECT_GT(io.paced_waits - before.paced_waits, kRequests);
  EXPECT_LE(static_cast<double>(io.paced_waits - before.paced_waits), pieces + 16);
  // Each piece of each end: one sleep, one read or write; and the news of the socket in between.
  EXPECT_LE(static_cast<double>(turns), 4 * pieces);
}

// A window of small push-pulls: requests leave together, and every message is read with one call
// for its header and one for its payload, which brings the next header along.
TEST(TcpCostTest, SystemCallsAreFew) {
  LeanPair pair(4096);
  pair.Run(100);
  const auto& io = dynamic_cast<TcpEndpoint&>(*pair.client).io_stats();
  const TcpIoStats before = io;
  constexpr uint64_t kRequests = 1000;
  pair.Run(kRequests);
  EXPECT_LE(io.writes - before.writes, kRequests);
  // kTaken's header, the reply's header, its payload.
  EXPECT_LE(io.reads - io.reads_blocked - (before.reads - before.reads_blocked), 3 * kRequests);
  // One endpoint serves both ends here, in turns: it looks in vain at most once a turn.
  EXPECT_LE(io.read_waits - before.read_waits, kRequests);
}

TEST(FactoryTest, KnowsItsTransports) {
  const auto tcp = CreateEndpoint("tcp");
  ASSERT_TRUE(tcp) << tcp.error();
  EXPECT_EQ((*tcp)->name(), "tcp");
  const auto unknown = CreateEndpoint("pigeon");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.error().message(), HasSubstr("tcp"));
  const auto bounded = CreateEndpoint("tcp", {.max_region_bytes = 1 << 20});
  ASSERT_TRUE((*bounded)->Allocate(1 << 20));
  EXPECT_EQ((*bounded)->Allocate((1 << 20) + 1).error().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace slackline::transport
