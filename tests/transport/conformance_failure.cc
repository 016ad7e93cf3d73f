// Conformance: closing, the memory fence, peers that leave, and addresses that lead nowhere.
#include <algorithm>

#include "tests/transport/conformance.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;

TEST_P(TransportTest, BadAddressesAreInvalidArguments) {
  for (const std::string& bad : fixture->BadAddresses()) {
    SCOPED_TRACE(bad);
    const auto listening = server->Listen(bad);
    ASSERT_FALSE(listening);
    EXPECT_EQ(listening.error().code(), StatusCode::kInvalidArgument);
    const auto channel = client->Connect(bad, kNsPerSecond);
    ASSERT_FALSE(channel);
    EXPECT_EQ(channel.error().code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(TransportTest, AUsedAddressAlreadyExists) {
  const auto again = client->Listen(address);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(OpenChannel(), nullptr) << "the first listener goes on";
}

TEST_P(TransportTest, ConnectingToNobodyClosesWithUnavailable) {
  const Result<Channel*> channel = client->Connect(fixture->NobodyAddress(), 2 * kNsPerSecond);
  ASSERT_TRUE(channel) << channel.error();
  EXPECT_TRUE(client_handler.closed.empty()) << "callbacks come inside Poll";
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.closed.empty(); }));
  EXPECT_EQ(client_handler.closed[0].first, *channel);
  EXPECT_EQ(client_handler.closed[0].second.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client_handler.opened.empty());
}

TEST_P(TransportTest, AConnectCanBeGivenUp) {
  const Result<Channel*> channel = client->Connect(address, kNsPerSecond);
  ASSERT_TRUE(channel) << channel.error();
  (*channel)->Close();
  Channel* next = OpenChannel();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(client_handler.opened.size(), 1u);
  EXPECT_TRUE(client_handler.closed.empty()) << "no report of a close of one's own";
}

TEST_P(TransportTest, ADeadServerIsReportedOnceAndItsRequestsAreFreed) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  MutableBytes payload = ClientMemory(1000);
  for (uint64_t id = 1; id <= 5; ++id) {
    ASSERT_TRUE(channel->Send(RequestHeader(id, 1000), payload, payload).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == 5; }));
  KillServer();
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.closed.empty(); }));
  // More turns show that nothing is told twice.
  for (int turn = 0; turn < 10; ++turn) client->Poll(0);
  ASSERT_EQ(client_handler.closed.size(), 1u);
  EXPECT_EQ(client_handler.closed[0].first, channel);
  EXPECT_EQ(client_handler.closed[0].second.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client_handler.replies.empty());
}

TEST_P(TransportTest, ADeadClientIsReportedOnceInTheMiddleOfItsMessage) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 64u << 20;  // More than any socket holds.
  MutableBytes in = ServerMemory(kBytes);
  server_handler.when_arriving = [&](Channel&, const WireHeader&) { return Landing::Into(in); };
  MutableBytes payload = ClientMemory(kBytes);
  ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), payload, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return server_handler.asked == 1; }));
  KillClient();
  ASSERT_TRUE(PumpUntil([&] { return !server_handler.closed.empty(); }));
  for (int turn = 0; turn < 10; ++turn) server->Poll(0);
  EXPECT_EQ(server_handler.closed.size(), 1u);
  EXPECT_TRUE(server_handler.requests.empty()) << "half a message is no message";
}

TEST_P(TransportTest, OthersGoOnWhenAChannelDies) {
  Channel* first = OpenChannel();
  Channel* second = OpenChannel();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  ServeEcho(0);
  first->Close();
  ASSERT_TRUE(PumpUntil([&] { return !server_handler.closed.empty(); }));
  EXPECT_EQ(server_handler.closed[0].first, server_handler.opened[0]);
  ASSERT_TRUE(second->Send(RequestHeader(1, 0, MessageKind::kPull), {}, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  EXPECT_EQ(client_handler.closed.size(), 0u);
}

// The worker closes while the shard's replies pour in, and uses the landing again at once.
TEST_P(TransportTest, CloseFencesTheLanding) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 8u << 20;
  constexpr size_t kReplies = 4;
  MutableBytes reply = ServerMemory(kBytes);
  std::fill(reply.begin(), reply.end(), std::byte{1});
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes) {
    (void)at.Reply(ReplyHeader(header, kBytes), reply);
  };
  MutableBytes landing = ClientMemory(kBytes * kReplies);
  for (uint64_t id = 0; id < kReplies; ++id) {
    ASSERT_TRUE(channel
                    ->Send(RequestHeader(id, 0, MessageKind::kPull), {},
                           landing.subspan(id * kBytes, kBytes))
                    .ok());
  }
  // Closed when the first reply is complete and the second under way.
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  for (int turn = 0; turn < 3; ++turn) {
    server->Poll(0);
    client->Poll(0);
  }
  channel->Close();
  std::fill(landing.begin(), landing.end(), std::byte{2});
  const size_t replies = client_handler.replies.size();
  ASSERT_TRUE(PumpUntil([&] { return !server_handler.closed.empty(); }));
  for (int turn = 0; turn < 10; ++turn) client->Poll(0);
  EXPECT_TRUE(std::all_of(landing.begin(), landing.end(),
                          [](std::byte byte) { return byte == std::byte{2}; }));
  EXPECT_EQ(client_handler.replies.size(), replies);
  EXPECT_TRUE(client_handler.closed.empty());
}

// The shard closes a worker that goes on pushing: its accumulators must not change any more.
TEST_P(TransportTest, CloseFencesTheShardsMemory) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 32u << 20;
  MutableBytes in = ServerMemory(kBytes);
  server_handler.when_arriving = [&](Channel&, const WireHeader&) { return Landing::Into(in); };
  MutableBytes payload = ClientMemory(kBytes);
  std::fill(payload.begin(), payload.end(), std::byte{1});
  ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), payload, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return server_handler.asked == 1; }));
  server->Poll(0);
  server_handler.opened[0]->Close();
  std::fill(in.begin(), in.end(), std::byte{2});
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.closed.empty(); }));
  for (int turn = 0; turn < 10; ++turn) server->Poll(0);
  EXPECT_TRUE(
      std::all_of(in.begin(), in.end(), [](std::byte byte) { return byte == std::byte{2}; }));
  EXPECT_TRUE(server_handler.requests.empty());
  EXPECT_TRUE(server_handler.closed.empty());
}

TEST_P(TransportTest, CloseIsLegalInsideEveryCallback) {
  MutableBytes in = ServerMemory(100), out = ServerMemory(100);
  MutableBytes payload = ClientMemory(100), landing = ClientMemory(100);
  const std::vector<std::string> places = {"opened here", "opened there", "arriving",  "request",
                                           "taken",       "reply",        "reply sent"};
  for (const std::string& place : places) {
    SCOPED_TRACE(place);
    bool closed_here = false;
    const auto close_at = [&](const char* at, Channel& channel) {
      if (place != at) return;
      channel.Close();
      closed_here = true;
    };
    client_handler.when_opened = [&](Channel& at) { close_at("opened here", at); };
    server_handler.when_opened = [&](Channel& at) { close_at("opened there", at); };
    server_handler.when_arriving = [&](Channel& at, const WireHeader&) {
      close_at("arriving", at);
      return Landing::Into(in);
    };
    server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes) {
      close_at("request", at);
      (void)at.SendTaken(header.request_id);
      (void)at.Reply(ReplyHeader(header, 100), out);
    };
    client_handler.when_taken = [&](Channel& at, uint64_t) { close_at("taken", at); };
    client_handler.when_reply = [&](Channel& at, const WireHeader&, MutableBytes) {
      close_at("reply", at);
    };
    server_handler.when_reply_sent = [&](Channel& at, uint64_t) { close_at("reply sent", at); };
    const size_t reports = client_handler.closed.size() + server_handler.closed.size();
    const Result<Channel*> channel = client->Connect(address, 5 * kNsPerSecond);
    ASSERT_TRUE(channel) << channel.error();
    const size_t opened = client_handler.opened.size();
    ASSERT_TRUE(PumpUntil([&] {
      return closed_here || client_handler.opened.size() > opened ||
             client_handler.closed.size() + server_handler.closed.size() > reports;
    }));
    if (client_handler.opened.size() > opened && !closed_here) {
      (void)(*channel)->Send(RequestHeader(1, 100), payload, landing);
    }
    // The end that did not close is told, once; the one that did is not.
    ASSERT_TRUE(PumpUntil([&] {
      return closed_here &&
             client_handler.closed.size() + server_handler.closed.size() == reports + 1;
    }));
  }
}

TEST_P(TransportTest, AReplyTooLargeForItsLandingClosesWithDataLoss) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  MutableBytes reply = ServerMemory(101);
  std::fill(reply.begin(), reply.end(), std::byte{9});
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes) {
    ASSERT_TRUE(at.Reply(ReplyHeader(header, 101), reply).ok());
  };
  MutableBytes landing = ClientMemory(200);
  ASSERT_TRUE(channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, landing.first(100)).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.closed.empty(); }));
  EXPECT_EQ(client_handler.closed[0].second.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(client_handler.replies.empty());
  EXPECT_EQ(landing[0], std::byte{0}) << "nothing of it landed";
  EXPECT_EQ(client->stats().protocol_errors, 1u);
}

TEST_P(TransportTest, AReplyBufferIsFreeOnceReplySent) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 500'000;
  MutableBytes reply = ServerMemory(kBytes);
  FillPattern(reply, 1);
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes) {
    ASSERT_TRUE(at.Reply(ReplyHeader(header, kBytes), reply).ok());
  };
  server_handler.when_reply_sent = [&](Channel&, uint64_t) {
    std::fill(reply.begin(), reply.end(), std::byte{0});
  };
  MutableBytes landing = ClientMemory(kBytes);
  ASSERT_TRUE(channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, landing).ok());
  ASSERT_TRUE(PumpUntil(
      [&] { return !client_handler.replies.empty() && !server_handler.replies_sent.empty(); }));
  EXPECT_TRUE(HasPattern(landing, 1));
  EXPECT_EQ(server_handler.replies_sent, std::vector<uint64_t>{1});
}

}  // namespace
}  // namespace slackline::transport
