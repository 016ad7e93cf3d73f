// Conformance: requests, replies, where payloads land, and in what order things are told.
#include <numeric>

#include "tests/transport/conformance.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;

TEST_P(TransportTest, OpensAndNamesBothEnds) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(server_handler.opened.size(), 1u);
  EXPECT_EQ(client_handler.opened.size(), 1u);
  EXPECT_EQ(channel->peer(), fixture->PeerName(address));
  EXPECT_FALSE(server_handler.opened[0]->peer().empty());
  EXPECT_EQ(client->name(), GetParam().name);
  EXPECT_EQ(channel->context(), nullptr);
}

TEST_P(TransportTest, HeadersArriveUnchanged) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  ServeEcho(0);
  WireHeader sent = RequestHeader(uint64_t{1} << 63, 0, MessageKind::kPull);
  sent.trace_id = 77;
  sent.version = 5;
  ASSERT_TRUE(channel->Send(sent, {}, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  ASSERT_EQ(server_handler.requests.size(), 1u);
  EXPECT_EQ(server_handler.requests[0].header, sent);
  EXPECT_TRUE(server_handler.requests[0].payload.empty());
  EXPECT_EQ(client_handler.replies[0].header, ReplyHeader(sent, 0));
  EXPECT_TRUE(client_handler.replies[0].payload.empty());
  EXPECT_EQ(server_handler.asked, 0u) << "a request without payload has no landing";
}

TEST_P(TransportTest, EveryEventOfAnEmptyRequestIsToldOnce) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  ServeEcho(0);
  ASSERT_TRUE(channel->Send(RequestHeader(4, 0, MessageKind::kPull), {}, {}).ok());
  ASSERT_TRUE(PumpUntil(
      [&] { return !client_handler.replies.empty() && !server_handler.replies_sent.empty(); }));
  EXPECT_EQ(server_handler.replies_sent, std::vector<uint64_t>{4});
  EXPECT_TRUE(client_handler.taken.empty());
  EXPECT_TRUE(client_handler.closed.empty());
  EXPECT_TRUE(server_handler.closed.empty());
}

TEST_P(TransportTest, PayloadsOfAllSizesLandExactlyWhereNamed) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  const std::vector<size_t> sizes = {1,         63,   64,        4096, (1u << 20) + 1,
                                     16u << 20, 4097, 128 + 128, 128};
  const size_t largest = 16u << 20;
  constexpr size_t kGuard = 256;  // Bytes around each landing that must stay as they are.
  ServeEcho(largest);
  MutableBytes payload = ClientMemory(largest);
  MutableBytes arena = ClientMemory(largest + 2 * kGuard);
  const std::byte guard{0xA5};
  uint64_t id = 1;
  uint64_t copied = 0;
  for (size_t size : sizes) {
    SCOPED_TRACE(size);
    copied += Copied(size);
    FillPattern(payload.first(size), id);
    std::fill_n(arena.begin(), size + 2 * kGuard, guard);
    bool request_intact = false;
    const auto serve = server_handler.when_request;
    server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes bytes) {
      request_intact = bytes.size() == size && HasPattern(bytes, header.request_id);
      serve(at, header, bytes);
    };
    const MutableBytes landing = arena.subspan(kGuard, size);
    ASSERT_TRUE(channel->Send(RequestHeader(id, size), payload.first(size), landing).ok());
    // The server's buffer may be used again only after OnReplySent.
    ASSERT_TRUE(PumpUntil([&] {
      return client_handler.replies.size() == id && server_handler.replies_sent.size() == id;
    }));
    server_handler.when_request = serve;
    EXPECT_TRUE(request_intact);
    const MutableBytes got = client_handler.replies.back().payload;
    EXPECT_EQ(got.data(), landing.data());
    EXPECT_EQ(got.size(), size);
    EXPECT_TRUE(HasPattern(landing, id + kReplySeed));
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(arena[i], guard) << "written before the landing";
      ASSERT_EQ(arena[kGuard + size + i], guard) << "written behind the landing";
    }
    ++id;
  }
  EXPECT_EQ(server->stats().payload_bytes_copied, copied);
  EXPECT_EQ(client->stats().payload_bytes_copied, copied);
}

TEST_P(TransportTest, AReplyMayBeSmallerThanItsLanding) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  MutableBytes reply = ServerMemory(100);
  FillPattern(reply, 1);
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes) {
    ASSERT_TRUE(at.Reply(ReplyHeader(header, reply.size()), reply).ok());
  };
  MutableBytes landing = ClientMemory(1000);
  ASSERT_TRUE(channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, landing).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  EXPECT_EQ(client_handler.replies[0].payload.data(), landing.data());
  EXPECT_EQ(client_handler.replies[0].payload.size(), 100u);
  EXPECT_TRUE(HasPattern(landing.first(100), 1));
  EXPECT_EQ(landing[100], std::byte{0});
}

TEST_P(TransportTest, ManyOutstandingRequestsAllComeBack) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kRequests = 200;
  constexpr size_t kBytes = 3000;
  MutableBytes in = ServerMemory(kRequests * kBytes);
  MutableBytes out = ServerMemory(kRequests * kBytes);
  MutableBytes payloads = ClientMemory(kRequests * kBytes);
  MutableBytes landings = ClientMemory(kRequests * kBytes);
  const auto part = [](MutableBytes all, uint64_t id) { return all.subspan(id * kBytes, kBytes); };
  server_handler.when_arriving = [&](Channel&, const WireHeader& header) {
    return Landing::Into(part(in, header.request_id));
  };
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes bytes) {
    EXPECT_TRUE(HasPattern(bytes, header.request_id));
    FillPattern(part(out, header.request_id), header.request_id + kReplySeed);
    EXPECT_TRUE(at.Reply(ReplyHeader(header, kBytes), part(out, header.request_id)).ok());
  };
  for (uint64_t id = 0; id < kRequests; ++id) {
    FillPattern(part(payloads, id), id);
    ASSERT_TRUE(
        channel->Send(RequestHeader(id, kBytes), part(payloads, id), part(landings, id)).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == kRequests; }));
  for (uint64_t id = 0; id < kRequests; ++id) {
    EXPECT_TRUE(HasPattern(part(landings, id), id + kReplySeed)) << id;
  }
  ASSERT_TRUE(PumpUntil([&] { return server_handler.replies_sent.size() == kRequests; }));
}

TEST_P(TransportTest, RepliesMayComeInAnyOrder) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kRequests = 20;
  constexpr size_t kBytes = 500;
  MutableBytes out = ServerMemory(kRequests * kBytes);
  MutableBytes landings = ClientMemory(kRequests * kBytes);
  for (uint64_t id = 0; id < kRequests; ++id) {
    ASSERT_TRUE(channel
                    ->Send(RequestHeader(id, 0, MessageKind::kPull), {},
                           landings.subspan(id * kBytes, kBytes))
                    .ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == kRequests; }));
  for (uint64_t id = kRequests; id-- > 0;) {
    MutableBytes bytes = out.subspan(id * kBytes, kBytes);
    FillPattern(bytes, id);
    const Recorder::Request& request = server_handler.requests[id];
    ASSERT_TRUE(request.channel->Reply(ReplyHeader(request.header, kBytes), bytes).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == kRequests; }));
  for (uint64_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(client_handler.replies[i].header.request_id, kRequests - 1 - i);
    EXPECT_TRUE(HasPattern(landings.subspan(i * kBytes, kBytes), i));
  }
}

TEST_P(TransportTest, TakenComesBeforeTheReply) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  MutableBytes in = ServerMemory(64);
  server_handler.when_arriving = [&](Channel&, const WireHeader&) { return Landing::Into(in); };
  server_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes) {
    EXPECT_TRUE(at.SendTaken(header.request_id).ok());
  };
  MutableBytes payload = ClientMemory(64);
  ASSERT_TRUE(channel->Send(RequestHeader(9, 64), payload, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.taken.empty(); }));
  EXPECT_TRUE(client_handler.replies.empty()) << "the reply is still to come";
  const Recorder::Request& request = server_handler.requests.at(0);
  EXPECT_FALSE(request.channel->SendTaken(9).ok()) << "once a request";
  ASSERT_TRUE(request.channel->Reply(ReplyHeader(request.header, 0), {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  EXPECT_EQ(client_handler.events, (std::vector<std::string>{"taken 9", "reply 9"}));
}

TEST_P(TransportTest, ARequestIdMayBeUsedAgainInsideItsReply) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  ServeEcho(0);
  constexpr size_t kRounds = 50;
  client_handler.when_reply = [&](Channel& at, const WireHeader&, MutableBytes) {
    if (client_handler.replies.size() < kRounds) {
      EXPECT_TRUE(at.Send(RequestHeader(1, 0, MessageKind::kPull), {}, {}).ok());
    }
  };
  ASSERT_TRUE(channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == kRounds; }));
}

TEST_P(TransportTest, MisuseIsRefusedAndHarmless) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  ServeEcho(8);
  MutableBytes payload = ClientMemory(8);
  EXPECT_EQ(channel->Send(RequestHeader(1, 4), payload, {}).code(), StatusCode::kInvalidArgument)
      << "header and payload differ in size";
  EXPECT_EQ(channel->Send(RequestHeader(1, 0, MessageKind::kReply), {}, {}).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(channel->Send(RequestHeader(1, 8), payload, payload).ok());
  EXPECT_EQ(channel->Send(RequestHeader(1, 8), payload, payload).code(),
            StatusCode::kInvalidArgument)
      << "the id is open";
  ASSERT_TRUE(PumpUntil([&] { return !client_handler.replies.empty(); }));
  Channel* there = server_handler.opened.at(0);
  EXPECT_EQ(there->Reply(ReplyHeader(RequestHeader(1, 0), 0), {}).code(),
            StatusCode::kFailedPrecondition)
      << "answered already";
  EXPECT_EQ(there->SendTaken(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(there->Reply(ReplyHeader(RequestHeader(99, 0), 0), {}).code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(channel->Send(RequestHeader(2, 8), payload, payload).ok());
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == 2; }));
}

TEST_P(TransportTest, StatsCountMessagesAndBytes) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  ServeEcho(1000);
  MutableBytes payload = ClientMemory(1000);
  MutableBytes landing = ClientMemory(1000);
  for (uint64_t id = 1; id <= 10; ++id) {
    ASSERT_TRUE(channel->Send(RequestHeader(id, 1000), payload, landing).ok());
    ASSERT_TRUE(PumpUntil([&] {
      return client_handler.replies.size() == id && server_handler.replies_sent.size() == id;
    }));
  }
  const EndpointStats& there = server->stats();
  const EndpointStats& here = client->stats();
  EXPECT_EQ(here.requests_sent, 10u);
  EXPECT_EQ(there.requests_received, 10u);
  EXPECT_EQ(there.replies_sent, 10u);
  EXPECT_EQ(here.replies_received, 10u);
  EXPECT_EQ(here.payload_bytes_sent, 10'000u);
  EXPECT_EQ(there.payload_bytes_received, 10'000u);
  EXPECT_EQ(there.payload_bytes_sent, 10'000u);
  EXPECT_EQ(here.payload_bytes_received, 10'000u);
  EXPECT_EQ(here.payload_bytes_copied, 10 * Copied(1000));
  EXPECT_EQ(there.payload_bytes_copied, 10 * Copied(1000));
  EXPECT_EQ(here.payload_bytes_drained + there.payload_bytes_drained, 0u);
  EXPECT_EQ(here.protocol_errors + there.protocol_errors, 0u);
}

}  // namespace
}  // namespace slackline::transport
