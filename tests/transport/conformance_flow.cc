// Conformance: who may be slow: back-pressure, draining, bounds, and many channels at once.
#include <algorithm>

#include "tests/transport/conformance.h"

namespace slackline::transport {
namespace {

using proto::MessageKind;
using proto::WireHeader;

TEST_P(TransportTest, LaterHoldsTheChannelUntilResumed) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  Channel* there = server_handler.opened.at(0);
  constexpr size_t kBytes = 100'000;
  MutableBytes in = ServerMemory(2 * kBytes);
  bool ready = false;
  server_handler.when_arriving = [&](Channel&, const WireHeader& header) {
    if (!ready) return Landing::Later();
    return Landing::Into(in.subspan((header.request_id - 1) * kBytes, kBytes));
  };
  MutableBytes payloads = ClientMemory(2 * kBytes);
  for (uint64_t id = 1; id <= 2; ++id) {
    const MutableBytes payload = payloads.subspan((id - 1) * kBytes, kBytes);
    FillPattern(payload, id);
    ASSERT_TRUE(channel->Send(RequestHeader(id, kBytes), payload, {}).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return server_handler.asked == 1; }));
  // Other channels go on meanwhile, which also gives a wrong one the time to deliver.
  Channel* other = OpenChannel();
  ASSERT_NE(other, nullptr);
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(other->Send(RequestHeader(id, 0, MessageKind::kPull), {}, {}).ok());
    ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == id; }));
  }
  EXPECT_EQ(server_handler.asked, 1u) << "not asked again before it resumes";
  there->ResumeReceiving();
  ASSERT_TRUE(PumpUntil([&] { return server_handler.asked == 2; }));
  EXPECT_EQ(server_handler.requests.size(), 20u) << "Later again";
  ready = true;
  there->ResumeReceiving();
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == 22; }));
  EXPECT_EQ(server_handler.requests[20].header.request_id, 1u);
  EXPECT_TRUE(HasPattern(server_handler.requests[20].payload, 1));
  EXPECT_EQ(server_handler.requests[21].header.request_id, 2u);
  EXPECT_TRUE(HasPattern(server_handler.requests[21].payload, 2));
  there->ResumeReceiving();  // Harmless when nothing waits.
}

TEST_P(TransportTest, AReplyGoesOutWhileTheChannelIsHeldAndAsksNothing) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  Channel* there = server_handler.opened.at(0);
  constexpr size_t kBytes = 1000;
  bool ready = false;
  MutableBytes in = ServerMemory(kBytes);
  server_handler.when_arriving = [&](Channel&, const WireHeader&) {
    return ready ? Landing::Into(in) : Landing::Later();
  };
  MutableBytes payload = ClientMemory(kBytes);
  ASSERT_TRUE(channel->Send(RequestHeader(1, 0, MessageKind::kPull), {}, {}).ok());
  ASSERT_TRUE(channel->Send(RequestHeader(2, kBytes), payload, {}).ok());
  ASSERT_TRUE(
      PumpUntil([&] { return server_handler.requests.size() == 1 && server_handler.asked == 1; }));
  ASSERT_TRUE(there->Reply(ReplyHeader(server_handler.requests[0].header, 0), {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == 1; }));
  EXPECT_EQ(server_handler.asked, 1u) << "not asked again before it resumes";
  ready = true;
  there->ResumeReceiving();
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == 2; }));
  EXPECT_EQ(server_handler.asked, 2u);
}

TEST_P(TransportTest, DrainedPayloadsAreThrownAwayAndAnswered) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 300'001;
  server_handler.when_arriving = [](Channel&, const WireHeader&) { return Landing::Drain(); };
  server_handler.when_request = [](Channel& at, const WireHeader& header, MutableBytes payload) {
    EXPECT_TRUE(payload.empty());
    EXPECT_TRUE(at.Reply(ReplyHeader(header, 0), {}).ok());
  };
  MutableBytes payload = ClientMemory(kBytes);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(channel->Send(RequestHeader(id, kBytes), payload, {}).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == 3; }));
  EXPECT_EQ(server->stats().payload_bytes_drained, 3 * kBytes);
  EXPECT_EQ(server->stats().payload_bytes_received, 0u);
}

TEST_P(TransportTest, OpenRequestsAreBounded) {
  Channel* channel = OpenChannel();
  ASSERT_NE(channel, nullptr);
  for (uint64_t id = 0; id < kMaxOpenRequests; ++id) {
    ASSERT_TRUE(channel->Send(RequestHeader(id, 0, MessageKind::kPull), {}, {}).ok()) << id;
  }
  const WireHeader one_more = RequestHeader(kMaxOpenRequests, 0, MessageKind::kPull);
  EXPECT_EQ(channel->Send(one_more, {}, {}).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == kMaxOpenRequests; }));
  EXPECT_EQ(channel->Send(one_more, {}, {}).code(), StatusCode::kResourceExhausted)
      << "they are open until answered";
  const Recorder::Request& first = server_handler.requests[0];
  ASSERT_TRUE(first.channel->Reply(ReplyHeader(first.header, 0), {}).ok());
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == 1; }));
  EXPECT_TRUE(channel->Send(one_more, {}, {}).ok()) << "a reply makes room";
  ASSERT_TRUE(PumpUntil([&] { return server_handler.requests.size() == kMaxOpenRequests + 1; }));
  for (size_t i = 1; i <= kMaxOpenRequests; ++i) {
    const Recorder::Request& request = server_handler.requests[i];
    ASSERT_TRUE(request.channel->SendTaken(request.header.request_id).ok());
    ASSERT_TRUE(request.channel->Reply(ReplyHeader(request.header, 0), {}).ok());
  }
  ASSERT_TRUE(PumpUntil([&] { return client_handler.replies.size() == kMaxOpenRequests + 1; }));
  EXPECT_TRUE(client_handler.closed.empty());
}

// Several channels, each with requests of its own size in flight in both directions, until every
// one has done its rounds.
TEST_P(TransportTest, ChannelsUnderLoadInBothDirections) {
  constexpr size_t kChannels = 5;
  constexpr size_t kInFlight = 4;
  constexpr uint64_t kRounds = 100;
  constexpr size_t kSlotBytes = 200'000;
  struct State {
    Channel* channel = nullptr;
    size_t payload_bytes = 0;
    uint64_t sent = 0, answered = 0;
  };
  std::vector<State> states(kChannels);
  const size_t total = kChannels * kInFlight * kSlotBytes;
  MutableBytes in = ServerMemory(total), out = ServerMemory(total);
  MutableBytes payloads = ClientMemory(total), landings = ClientMemory(total);
  const auto slot = [&](MutableBytes all, const WireHeader& header) {
    const size_t index = header.worker * kInFlight + header.request_id % kInFlight;
    return all.subspan(index * kSlotBytes, header.payload_bytes);
  };
  const auto seed = [](const WireHeader& header) { return header.worker * 1000 + header.clock; };

  server_handler.when_arriving = [&](Channel&, const WireHeader& header) {
    return Landing::Into(slot(in, header));
  };
  server_handler.when_request = [&](Channel& at, const WireHeader& header, MutableBytes payload) {
    ASSERT_TRUE(HasPattern(payload, static_cast<uint64_t>(seed(header))));
    FillPattern(slot(out, header), static_cast<uint64_t>(seed(header)) + kReplySeed);
    ASSERT_TRUE(at.SendTaken(header.request_id).ok());
    ASSERT_TRUE(at.Reply(ReplyHeader(header, header.payload_bytes), slot(out, header)).ok());
  };
  const auto send = [&](size_t index, uint64_t slot_id) {
    State& state = states[index];
    WireHeader header = RequestHeader(slot_id, state.payload_bytes);
    header.worker = static_cast<WorkerId>(index);
    header.clock = static_cast<Clock>(state.sent++);
    FillPattern(slot(payloads, header), static_cast<uint64_t>(seed(header)));
    ASSERT_TRUE(state.channel->Send(header, slot(payloads, header), slot(landings, header)).ok());
  };
  client_handler.when_reply = [&](Channel&, const WireHeader& header, MutableBytes payload) {
    ASSERT_TRUE(HasPattern(payload, static_cast<uint64_t>(seed(header)) + kReplySeed));
    State& state = states[header.worker];
    ++state.answered;
    if (state.sent < kRounds) send(header.worker, header.request_id);
  };

  for (size_t i = 0; i < kChannels; ++i) {
    states[i].channel = OpenChannel();
    ASSERT_NE(states[i].channel, nullptr);
    states[i].payload_bytes = 1 + i * 40'009;
  }
  for (size_t i = 0; i < kChannels; ++i) {
    for (uint64_t id = 0; id < kInFlight; ++id) send(i, id);
  }
  ASSERT_TRUE(PumpUntil([&] {
    return std::all_of(states.begin(), states.end(),
                       [&](const State& state) { return state.answered == kRounds; });
  }));
  EXPECT_EQ(client_handler.taken.size(), kChannels * kRounds);
  uint64_t copied = 0;
  for (const State& state : states) copied += kRounds * Copied(state.payload_bytes);
  EXPECT_EQ(client->stats().payload_bytes_copied, copied);
  EXPECT_EQ(server->stats().payload_bytes_copied, copied);
  EXPECT_TRUE(client_handler.closed.empty());
  EXPECT_TRUE(server_handler.closed.empty());
}

TEST_P(TransportTest, MemoryIsPageAlignedAndRefusalsSayWhy) {
  const MutableBytes memory = ClientMemory(5000);
  EXPECT_EQ(memory.size(), 5000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
  const auto absurd = client->Allocate(size_t{1} << 62);
  ASSERT_FALSE(absurd);
  EXPECT_EQ(absurd.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(absurd.error().message().find(std::to_string(size_t{1} << 62)), std::string::npos);
}

}  // namespace
}  // namespace slackline::transport
