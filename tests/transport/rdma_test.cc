// What only RDMA has: the bootstrap and its strangers, choices of device and GID, grants, and what
// the work costs.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "common/counting_allocator.h"
#include "common/random.h"
#include "tests/transport/raw_socket.h"
#include "tests/transport/rdma_fixture.h"
#include "tests/transport/rdma_raw_peer.h"
#include "transport/rdma/hello.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;
using testing::HasSubstr;

constexpr TimeNs kPatienceNs = 60 * kNsPerSecond;
constexpr size_t kBytes = 100'000;

// A server and a client that exchange a message whenever a case wants to know that all is well.
class RdmaTest : public testing::Test {
 protected:
  explicit RdmaTest(const RdmaOptions& options = {}) : fixture(options) {
    server = fixture.MakeEndpoint();
    client = fixture.MakeEndpoint();
    server->set_handler(&server_handler);
    client->set_handler(&client_handler);
    address = server->Listen("rdma://127.0.0.1:0").value();
    bootstrap = "tcp" + address.substr(address.find("://"));
    landing_ = server->Allocate(kBytes).value();
    memory_ = client->Allocate(kBytes).value();
    server_handler.when_arriving = [this](Channel&, const WireHeader& header) {
      return Landing::Into(landing_->bytes().first(header.payload_bytes));
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
  }

  RdmaFixture fixture;
  Recorder server_handler, client_handler;
  std::unique_ptr<Endpoint> server, client;
  std::string address, bootstrap;
  Channel* channel = nullptr;

 private:
  std::unique_ptr<Region> landing_, memory_;
};

// ---- Strangers at the bootstrap ----

TEST_F(RdmaTest, GarbageAtTheBootstrapDisturbsNobody) {
  Rng rng(5);
  for (int turn = 0; turn < 20; ++turn) {
    RawSocket stranger(bootstrap);
    std::vector<std::byte> bytes(1 + rng.Below(1000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Below(256));
    if (turn == 0) {
      stranger.Write("GET / HTTP/1.1\r\n\r\n");
    } else {
      stranger.Write(bytes);
    }
    ASSERT_TRUE(PumpUntil([&] { return stranger.ClosedNow() || bytes.size() < 8; })) << turn;
  }
  EXPECT_EQ(server_handler.opened.size(), 1u);
  EXPECT_TRUE(server_handler.closed.empty()) << "of strangers the handler hears nothing";
  ExpectUndisturbed();
}

// Speaks TCP to the bootstrap and keeps what it is answered.
class TcpStranger {
 public:
  explicit TcpStranger(const std::string& bootstrap) {
    endpoint = TcpEndpoint::Create({}).value();
    endpoint->set_handler(&handler);
    channel = endpoint->Connect(bootstrap, kPatienceNs).value();
  }
  Hello Answer() const { return ParseHello(handler.replies.at(0).payload).value(); }

  Recorder handler;
  std::unique_ptr<Endpoint> endpoint;
  Channel* channel = nullptr;
  std::array<std::byte, kHelloBytes> hello{}, answer{};
};

TEST_F(RdmaTest, AClientOfTcpIsToldWhatThePortSpeaks) {
  TcpStranger stranger(bootstrap);
  const auto pump = [&](const std::function<bool()>& done) {
    return fixture.PumpUntil({stranger.endpoint.get(), server.get()}, done);
  };
  ASSERT_TRUE(pump([&] { return !stranger.handler.opened.empty(); }));
  ASSERT_TRUE(
      stranger.channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, stranger.answer).ok());
  ASSERT_TRUE(pump([&] { return !stranger.handler.replies.empty(); }));
  EXPECT_EQ(stranger.handler.replies[0].header.status, proto::ReplyStatus::kMalformed);
  EXPECT_THAT(stranger.Answer().reason, HasSubstr("speaks RDMA"));
  EXPECT_EQ(server_handler.opened.size(), 1u);
  ExpectUndisturbed();
}

TEST_F(RdmaTest, AnotherVersionIsRefusedWithBothVersions) {
  TcpStranger stranger(bootstrap);
  const auto pump = [&](const std::function<bool()>& done) {
    return fixture.PumpUntil({stranger.endpoint.get(), server.get()}, done);
  };
  ASSERT_TRUE(pump([&] { return !stranger.handler.opened.empty(); }));
  Hello hello;
  hello.version = kRdmaProtocolVersion + 1;
  EncodeHello(hello, stranger.hello);
  ASSERT_TRUE(stranger.channel
                  ->Send(RequestHeader(1, kHelloBytes, MessageKind::kHello), stranger.hello,
                         stranger.answer)
                  .ok());
  ASSERT_TRUE(pump([&] { return !stranger.handler.replies.empty(); }));
  EXPECT_FALSE(stranger.Answer().accepted);
  EXPECT_THAT(stranger.Answer().reason, HasSubstr("version is 2, this program's is 1"));
  ExpectUndisturbed();
}

TEST_F(RdmaTest, APortThatSpeaksTcpIsNamed) {
  Recorder tcp_handler;
  const std::unique_ptr<Endpoint> tcp = TcpEndpoint::Create({}).value();
  tcp->set_handler(&tcp_handler);
  tcp_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes) {
    WireHeader reply = ReplyHeader(header, 0);
    reply.status = proto::ReplyStatus::kMalformed;
    (void)at.Reply(reply, {});
  };
  const std::string there = tcp->Listen("tcp://127.0.0.1:0").value();
  ASSERT_TRUE(client->Connect("rdma" + there.substr(there.find("://")), kPatienceNs));
  ASSERT_TRUE(
      fixture.PumpUntil({client.get(), tcp.get()}, [&] { return !client_handler.closed.empty(); }));
  EXPECT_THAT(client_handler.closed[0].second.message(), HasSubstr("speaks TCP"));
  ExpectUndisturbed();
}

class ImpatientRdmaTest : public RdmaTest {
 protected:
  static RdmaOptions Impatient() {
    RdmaOptions options;
    options.handshake_timeout_ns = kNsPerSecond;
    return options;
  }
  ImpatientRdmaTest() : RdmaTest(Impatient()) {}
};

TEST_F(ImpatientRdmaTest, SilentConnectionsAreClosedAndTooManyAreTurnedAway) {
  std::vector<std::unique_ptr<RawSocket>> strangers;
  for (size_t i = 0; i < kMaxRdmaHalfOpen + 1; ++i) {
    strangers.push_back(std::make_unique<RawSocket>(bootstrap));
  }
  // Those within the bound have their time; the one beyond goes at once, all in the end.
  for (const auto& stranger : strangers) {
    ASSERT_TRUE(PumpUntil([&] { return stranger->ClosedNow(); }));
  }
  EXPECT_EQ(server_handler.opened.size(), 1u);
  ExpectUndisturbed();
}

// ---- Choices ----

TEST(RdmaChoiceTest, WhatDoesNotExistIsNamedWithWhatDoes) {
  const std::string device = OpenPorts({}).value().front().device;
  const auto refused = [](const RdmaOptions& options) {
    const auto endpoint = RdmaEndpoint::Create(options);
    return endpoint ? Status() : endpoint.error();
  };
  RdmaOptions options;
  options.gid_index = 77;
  EXPECT_THAT(refused(options).message(), HasSubstr("no GID index 77: it has 0 ("));
  options = {};
  options.devices = {"mlx5_99"};
  EXPECT_EQ(refused(options).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused(options).message(), HasSubstr(device));
  options.devices = {device};
  EXPECT_TRUE(refused(options).ok());
  options.port = 9;
  EXPECT_THAT(refused(options).message(), HasSubstr("port 9 was asked for"));
}

TEST(RdmaChoiceTest, TheGidIsTheOneOfTheWayToThePeer) {
  const RdmaPort port = std::move(OpenPorts({}).value().front());
  for (const RdmaGid& gid : port.gids) {
    const std::string text = GidText(gid.gid);
    EXPECT_TRUE(port.HasAddress(text)) << text;
    EXPECT_EQ(port.GidFor(text).index, gid.index) << text;
  }
  EXPECT_FALSE(port.HasAddress("192.0.2.77"));
  EXPECT_FALSE(port.gids.empty());
}

// Both ends list their devices in one order: the n-th channel takes the n-th device of both.
TEST(RdmaChoiceTest, ChannelsSpreadOverTheListedDevices) {
  const std::vector<RdmaPort> ports = OpenPorts({}).value();
  if (ports.size() < 2) GTEST_SKIP() << "this host has one RDMA device";
  RdmaOptions options;
  options.devices = {ports[0].device, ports[1].device};
  RdmaFixture fixture(options);
  Recorder server_handler, client_handler;
  const auto server = fixture.MakeEndpoint();
  const auto client = fixture.MakeEndpoint();
  server->set_handler(&server_handler);
  client->set_handler(&client_handler);
  const std::unique_ptr<Region> in = server->Allocate(kBytes).value();
  const std::unique_ptr<Region> out = client->Allocate(kBytes).value();
  server_handler.when_arriving = [&](Channel&, const WireHeader&) {
    return Landing::Into(in->bytes());
  };
  server_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes payload) {
    (void)at.Reply(ReplyHeader(header, payload.size()), payload);
  };
  const std::string address = server->Listen("rdma://127.0.0.1:0").value();
  for (size_t i = 0; i < 4; ++i) {
    auto* channel = static_cast<RdmaChannel*>(client->Connect(address, kPatienceNs).value());
    ASSERT_TRUE(fixture.PumpUntil({client.get(), server.get()}, [&] {
      return client_handler.opened.size() + client_handler.closed.size() == i + 1;
    }));
    ASSERT_TRUE(client_handler.closed.empty()) << client_handler.closed[0].second;
    EXPECT_EQ(channel->rail()->port().device, options.devices[i % 2]);
    auto* there = static_cast<RdmaChannel*>(server_handler.opened[i]);
    EXPECT_EQ(there->rail()->port().device, options.devices[i % 2]);
    ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), out->bytes(), out->bytes()).ok());
    ASSERT_TRUE(fixture.PumpUntil({client.get(), server.get()},
                                  [&] { return client_handler.replies.size() == i + 1; }));
  }
}

// ---- A process that dies ----

constexpr size_t kLongBytes = 64u << 20;

// A worker in the middle of a long push, until it is killed.
[[noreturn]] void PushUntilKilled(int address_pipe) {
  std::array<char, 64> address{};
  if (read(address_pipe, address.data(), address.size() - 1) <= 0) _exit(1);
  Recorder handler;
  auto endpoint = RdmaEndpoint::Create({}).value();
  endpoint->set_handler(&handler);
  const std::unique_ptr<Region> payload = endpoint->Allocate(kLongBytes).value();
  handler.when_opened = [&](Channel& at) {
    (void)at.Send(RequestHeader(1, kLongBytes), payload->bytes(), {});
  };
  if (!endpoint->Connect(address.data(), kPatienceNs)) _exit(1);
  while (true) endpoint->Poll(kNsPerSecond);
}

TEST(RdmaDeathTest, AKilledPeerIsNoticedInTheMiddleOfItsMessage) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t worker = fork();  // Before this process has memory that a device knows.
  ASSERT_GE(worker, 0);
  if (worker == 0) PushUntilKilled(pipe_ends[0]);
  RdmaFixture fixture;
  Recorder handler;
  const auto server = fixture.MakeEndpoint();
  server->set_handler(&handler);
  const std::unique_ptr<Region> landing = server->Allocate(kLongBytes).value();
  handler.when_arriving = [&](Channel&, const WireHeader&) {
    kill(worker, SIGKILL);
    return Landing::Into(landing->bytes());
  };
  const std::string address = server->Listen("rdma://127.0.0.1:0").value();
  ASSERT_EQ(write(pipe_ends[1], address.data(), address.size()),
            static_cast<ssize_t>(address.size()));
  ASSERT_TRUE(fixture.PumpUntil({server.get()}, [&] { return !handler.closed.empty(); }));
  EXPECT_EQ(handler.closed[0].second.code(), StatusCode::kUnavailable);
  EXPECT_EQ(handler.closed.size(), 1u);
  EXPECT_TRUE(handler.requests.empty()) << "half a message is no message";
  int status = 0;
  EXPECT_EQ(waitpid(worker, &status, 0), worker);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

// ---- Grants ----

class GrantTest : public RdmaTest {
 protected:
  GrantTest() {
    payload = client->Allocate(kBytes).value();
    landing = client->Allocate(kBytes).value();
    FillPattern(payload->bytes(), 1);
    FillPattern(landing->bytes(), 2);
    victim = client->Connect(peer.address(), kPatienceNs).value();
    EXPECT_TRUE(Pump([&] { return client_handler.opened.size() == 2; }));
    EXPECT_TRUE(victim->Send(RequestHeader(1, kBytes), payload->bytes(), landing->bytes()).ok());
    EXPECT_TRUE(Pump([&] { return peer.messages().size() == 1; }));
    frame = peer.messages()[0].frame;
  }
  bool Pump(const std::function<bool()>& done) {
    return PumpUntil([&] {
      peer.Poll();
      return done();
    });
  }
  ibv_wc_status Access(ibv_wr_opcode opcode, const Frame::Grant& grant, uint32_t key) {
    peer.Access(opcode, grant.address, key, 4096);
    EXPECT_TRUE(Pump([&] { return peer.outcome().has_value(); }));
    return peer.outcome().value_or(IBV_WC_GENERAL_ERR);
  }
  // The access was refused, the memory is as it was, and only that channel ends.
  void ExpectRefused(ibv_wc_status status) {
    EXPECT_EQ(status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(status);
    EXPECT_TRUE(HasPattern(payload->bytes(), 1));
    EXPECT_TRUE(HasPattern(landing->bytes(), 2));
    peer.Leave();
    ASSERT_TRUE(Pump([&] { return !client_handler.closed.empty(); }));
    EXPECT_EQ(client_handler.closed[0].first, victim);
    EXPECT_EQ(client_handler.closed.size(), 1u);
    ExpectUndisturbed();
  }

  RawPeer peer;
  std::unique_ptr<Region> payload, landing;
  Channel* victim = nullptr;
  Frame frame;
};

TEST_F(GrantTest, WhatIsGrantedMayBeTouched) {
  EXPECT_EQ(Access(IBV_WR_RDMA_READ, frame.payload, frame.payload.key), IBV_WC_SUCCESS);
  EXPECT_TRUE(HasPattern(ConstBytes(peer.local()).first(4096), 1));
  FillPattern(peer.local(), 3);
  EXPECT_EQ(Access(IBV_WR_RDMA_WRITE, frame.landing, frame.landing.key), IBV_WC_SUCCESS);
  EXPECT_TRUE(HasPattern(landing->bytes().first(4096), 3));
}

TEST_F(GrantTest, AKeyThatWasNeverGrantedIsRefused) {
  ExpectRefused(Access(IBV_WR_RDMA_WRITE, frame.landing, frame.landing.key ^ 0x5A));
}

TEST_F(GrantTest, APayloadMayNotBeWritten) {
  ExpectRefused(Access(IBV_WR_RDMA_WRITE, frame.payload, frame.payload.key));
}

TEST_F(GrantTest, ALandingMayNotBeRead) {
  ExpectRefused(Access(IBV_WR_RDMA_READ, frame.landing, frame.landing.key));
}

TEST_F(GrantTest, MemoryBeyondTheRegionIsRefused) {
  Frame::Grant beyond = frame.landing;
  beyond.address += kBytes;
  ExpectRefused(Access(IBV_WR_RDMA_WRITE, beyond, frame.landing.key));
}

TEST_F(GrantTest, AGrantEndsWithItsReply) {
  const WireHeader reply = ReplyHeader(peer.messages()[0].header, 0);
  peer.Send({.type = Frame::Type::kMessage,
             .payload_kind = {},
             .credits = 1,
             .payload = {},
             .landing = {}},
            reply);
  ASSERT_TRUE(Pump([&] { return client_handler.replies.size() == 1; }));
  for (int turn = 0; turn < 3; ++turn) client->Poll(0);
  ExpectRefused(Access(IBV_WR_RDMA_WRITE, frame.landing, frame.landing.key));
}

TEST_F(GrantTest, AReplyWithoutThePayloadItAnnouncesClosesTheChannel) {
  peer.Send({.type = Frame::Type::kMessage,
             .payload_kind = {},
             .credits = 1,
             .payload = {},
             .landing = {}},
            ReplyHeader(peer.messages()[0].header, kBytes));
  ASSERT_TRUE(Pump([&] { return !client_handler.closed.empty(); }));
  EXPECT_EQ(client_handler.closed[0].second.code(), StatusCode::kDataLoss);
  ExpectUndisturbed();
}

TEST_F(GrantTest, CreditsThatWereNeverGivenCloseTheChannel) {
  peer.Send({.type = Frame::Type::kCredit,
             .payload_kind = {},
             .credits = 500,
             .payload = {},
             .landing = {}});
  ASSERT_TRUE(Pump([&] { return !client_handler.closed.empty(); }));
  EXPECT_THAT(client_handler.closed[0].second.message(), HasSubstr("more credits"));
  ExpectUndisturbed();
}

TEST_F(GrantTest, FreedMemoryOfAnOpenRequestFencesItsChannel) {
  landing.reset();
  ASSERT_TRUE(Pump([&] { return !client_handler.closed.empty(); }));
  EXPECT_EQ(client_handler.closed[0].first, victim);
  EXPECT_THAT(client_handler.closed[0].second.message(), HasSubstr("was freed"));
  ExpectUndisturbed();
}

// ---- Memory and cost ----

TEST_F(RdmaTest, MemoryOfOthersIsRefused) {
  std::vector<std::byte> foreign(64);
  const Status status = channel->Send(RequestHeader(1, foreign.size()), foreign, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("Endpoint::Allocate"));
  ExpectUndisturbed();
}

// Keeps a window of push-pulls in flight and records nothing, so that what allocates is the
// transport.
class LeanPair : public Handler {
 public:
  static constexpr size_t kWindow = 8;

  explicit LeanPair(size_t payload_bytes) : payload_bytes_(payload_bytes) {
    server = RdmaEndpoint::Create({}).value();
    client = RdmaEndpoint::Create({}).value();
    server->set_handler(this);
    client->set_handler(this);
    landings_ = server->Allocate(kWindow * payload_bytes).value();
    memory_ = client->Allocate(kWindow * payload_bytes).value();
    channel_ = client->Connect(server->Listen("rdma://127.0.0.1:0").value(), kPatienceNs).value();
    while (opened_ < 2) Pump();
  }
  void Run(uint64_t requests) {
    replies_ = 0;
    wanted_ = requests;
    sent_ = 0;
    while (sent_ < std::min<uint64_t>(kWindow, requests)) Ask(sent_);
    while (replies_ < requests) Pump();
  }
  void Pump() {
    if (client->Poll(0) + server->Poll(0) == 0) client->Poll(kNsPerMs / 5);
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
    ++replies_;
    if (sent_ < wanted_) Ask(header.request_id);
  }

  std::unique_ptr<Endpoint> server, client;

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
  uint64_t replies_ = 0, wanted_ = 0, sent_ = 0;
};

TEST(RdmaCostTest, PushPullsAllocateNothing) {
  for (const size_t payload_bytes : {64ul, 4096ul, 262'144ul}) {
    SCOPED_TRACE(payload_bytes);
    LeanPair pair(payload_bytes);
    pair.Run(50);
    const AllocationCounts before = ThreadAllocations();
    pair.Run(200);
    const AllocationCounts after = ThreadAllocations();
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.frees, before.frees);
  }
}

}  // namespace
}  // namespace slackline::transport
