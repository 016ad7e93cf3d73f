// What the simulated network does beyond the conformance suite: its faults, its witness of memory,
// and that a seed is a whole run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/seeds.h"
#include "tests/transport/conformance.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"

namespace slackline::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 256;

// A server and a client process, each polled as soon as something has arrived.
class Pair {
 public:
  explicit Pair(uint64_t seed, const SimFaults& faults = {}) : network(seed, faults) {
    StartServer();
    StartClient();
    payload.resize(kBytes);
    landing.resize(kBytes);
    FillPattern(payload, 1);
  }
  void StartServer() {
    server = network.CreateEndpoint("server");
    server->set_handler(&at_server);
    ASSERT_EQ(server->Listen("sim://host:1").value(), "sim://host:1");
  }
  void StartClient() {
    client = network.CreateEndpoint("client");
    client->set_handler(&at_client);
  }
  Channel* Open() {
    Channel* channel = client->Connect("sim://host:1", kNsPerSecond).value();
    Run();
    return channel;
  }
  // Until nothing is left to happen.
  void Run() {
    for (size_t i = 0; i < 100'000; ++i) {
      if (server) server->Poll(0);
      if (client) client->Poll(0);
      if (!network.Step() && !(server && server->ready()) && !(client && client->ready())) return;
    }
    FAIL() << "the network does not come to rest";
  }
  // The server takes payloads into `taken_in` and answers with `reply`.
  void Serve() {
    taken_in.resize(kBytes);
    reply.resize(kBytes);
    FillPattern(reply, 2);
    at_server.when_arriving = [this](Channel&, const proto::WireHeader&) {
      return Landing::Into(taken_in);
    };
    at_server.when_request = [this](Channel& channel, const proto::WireHeader& header,
                                    MutableBytes) {
      ASSERT_TRUE(channel.Reply(ReplyHeader(header, kBytes), reply).ok());
    };
  }

  SimNetwork network;
  Recorder at_server, at_client;
  std::unique_ptr<SimEndpoint> server, client;
  std::vector<std::byte> payload, landing, taken_in, reply;
};

TEST(SimNetworkTest, AnEndpointsDeathIsHeardOfByItsPeersOnly) {
  Pair pair(1);
  ASSERT_NE(pair.Open(), nullptr);
  pair.server.reset();
  pair.Run();
  EXPECT_THAT(pair.at_server.closed, IsEmpty());
  ASSERT_EQ(pair.at_client.closed.size(), 1u);
  EXPECT_EQ(pair.at_client.closed[0].second.code(), StatusCode::kUnavailable);
  // Its address is free again, and nothing of the old one is left.
  pair.StartServer();
  pair.Open();
  EXPECT_EQ(pair.at_client.opened.size(), 2u);
}

TEST(SimNetworkTest, ACutIsHeardOfOnBothSidesAtDifferentTimes) {
  Pair pair(1);
  ASSERT_NE(pair.Open(), nullptr);
  std::vector<TimeNs> heard;
  const auto note = [&](Channel&, const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    heard.push_back(pair.network.NowNs());
  };
  pair.at_server.when_closed = note;
  pair.at_client.when_closed = note;
  pair.network.Cut("client", "server");
  pair.Run();
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_NE(heard[0], heard[1]);
}

TEST(SimNetworkTest, ACutLosesARowOfTheLastMessagesAndNeverOneInBetween) {
  std::set<size_t> arrived_counts;
  for (const uint64_t seed : sim::SeedsToRun(200)) {
    SCOPED_TRACE("SLACKLINE_SEED=" + std::to_string(seed));
    Pair pair(seed);
    Channel* channel = pair.Open();
    ASSERT_NE(channel, nullptr);
    for (uint64_t id = 0; id < 4; ++id) {
      ASSERT_TRUE(channel->Send(RequestHeader(id, 0, proto::MessageKind::kPull), {}, {}).ok());
    }
    pair.network.Cut("client", "server");
    pair.Run();
    for (size_t i = 0; i < pair.at_server.requests.size(); ++i) {
      EXPECT_EQ(pair.at_server.requests[i].header.request_id, i);
    }
    arrived_counts.insert(pair.at_server.requests.size());
    EXPECT_EQ(pair.at_server.closed.size(), 1u);
    EXPECT_EQ(pair.at_client.closed.size(), 1u);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_THAT(arrived_counts, ElementsAre(0, 1, 2, 3, 4));
}

TEST(SimNetworkTest, WhatArrivesAfterItsSenderClosedIsWhatWasSent) {
  size_t whole = 0, torn = 0;
  for (const uint64_t seed : sim::SeedsToRun(200)) {
    SCOPED_TRACE("SLACKLINE_SEED=" + std::to_string(seed));
    Pair pair(seed);
    Channel* channel = pair.Open();
    ASSERT_NE(channel, nullptr);
    pair.Serve();
    ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), pair.payload, pair.landing).ok());
    channel->Close();
    std::fill(pair.payload.begin(), pair.payload.end(), std::byte{7});  // The sender's again.
    pair.Run();
    if (pair.at_server.requests.size() == 1) {
      EXPECT_TRUE(HasPattern(pair.taken_in, 1));
      ++whole;
    } else if (std::count(pair.taken_in.begin(), pair.taken_in.end(), std::byte{0xFF}) > 0) {
      ++torn;
    }
    EXPECT_THAT(pair.at_client.closed, IsEmpty()) << "its own Close is not reported";
    EXPECT_EQ(pair.at_server.closed.size(), 1u);
    EXPECT_THAT(pair.network.violations(), IsEmpty());
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(whole, 20u);
  EXPECT_GT(torn, 5u);
}

TEST(SimNetworkTest, APartitionHoldsBackAndLosesNothing) {
  Pair pair(3);
  Channel* channel = pair.Open();
  ASSERT_NE(channel, nullptr);
  pair.network.Partition("server", "client");
  for (uint64_t id = 0; id < 5; ++id) {
    ASSERT_TRUE(channel->Send(RequestHeader(id, 0, proto::MessageKind::kPull), {}, {}).ok());
  }
  EXPECT_TRUE(pair.client->Connect("sim://host:1", kNsPerSecond).has_value());
  pair.Run();
  EXPECT_THAT(pair.at_server.requests, IsEmpty());
  ASSERT_EQ(pair.at_client.closed.size(), 1u) << "the connect timed out";
  pair.network.Heal("client", "server");
  pair.Run();
  ASSERT_EQ(pair.at_server.requests.size(), 5u);
  for (uint64_t id = 0; id < 5; ++id) {
    EXPECT_EQ(pair.at_server.requests[id].header.request_id, id);
  }
}

TEST(SimNetworkTest, ARequestThatIsDuplicatedIsAnsweredOnce) {
  Pair pair(1, {.duplicate_chance = 1});
  Channel* channel = pair.Open();
  ASSERT_NE(channel, nullptr);
  pair.Serve();
  ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), pair.payload, pair.landing).ok());
  pair.Run();
  ASSERT_EQ(pair.at_server.requests.size(), 2u);
  EXPECT_EQ(pair.at_server.requests[1].header.request_id, 1u);
  EXPECT_NE(pair.at_server.requests[0].header.request_id, 1u);
  EXPECT_EQ(pair.at_server.replies_sent.size(), 2u);
  ASSERT_EQ(pair.at_client.replies.size(), 1u);
  EXPECT_TRUE(HasPattern(pair.landing, 2));
}

TEST(SimNetworkTest, RefusedConnectsAreReported) {
  Pair pair(1, {.refuse_chance = 1});
  pair.Open();
  EXPECT_THAT(pair.at_client.opened, IsEmpty());
  ASSERT_EQ(pair.at_client.closed.size(), 1u);
  EXPECT_THAT(pair.at_client.closed[0].second.message(), HasSubstr("refused"));
}

// ---- The witness ----

TEST(SimWitnessTest, SeesAPayloadThatChangedUnderWay) {
  Pair pair(1);
  Channel* channel = pair.Open();
  ASSERT_NE(channel, nullptr);
  pair.Serve();
  ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), pair.payload, pair.landing).ok());
  pair.payload[kBytes - 1] ^= std::byte{1};
  pair.Run();
  ASSERT_FALSE(pair.network.violations().empty());
  EXPECT_THAT(pair.network.violations()[0], HasSubstr("under way"));
}

TEST(SimWitnessTest, SeesAPayloadThatChangedBeforeItsReply) {
  Pair pair(1);
  Channel* channel = pair.Open();
  ASSERT_NE(channel, nullptr);
  pair.Serve();
  pair.at_server.when_request = nullptr;
  ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), pair.payload, pair.landing).ok());
  pair.Run();
  pair.payload[0] ^= std::byte{1};
  Channel& there = *pair.at_server.requests.at(0).channel;
  ASSERT_TRUE(there.Reply(ReplyHeader(pair.at_server.requests[0].header, 0), {}).ok());
  pair.Run();
  ASSERT_EQ(pair.network.violations().size(), 1u);
  EXPECT_THAT(pair.network.violations()[0], HasSubstr("before the reply"));
}

TEST(SimWitnessTest, SeesAReplyThatChangedBeforeItWasSent) {
  size_t seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    Channel* channel = pair.Open();
    ASSERT_NE(channel, nullptr);
    pair.Serve();
    const auto serve = pair.at_server.when_request;
    pair.at_server.when_request = [&](Channel& at, const proto::WireHeader& header,
                                      MutableBytes bytes) {
      serve(at, header, bytes);
      pair.reply[3] ^= std::byte{1};
    };
    ASSERT_TRUE(channel->Send(RequestHeader(1, kBytes), pair.payload, pair.landing).ok());
    pair.Run();
    seen += pair.network.violations().empty() ? 0 : 1;
  }
  EXPECT_EQ(seen, 20u);
}

// ---- Determinism ----

// A client that keeps asking, over a bad network, until it has its answers.
uint64_t RunSeed(uint64_t seed, size_t* events) {
  Pair pair(seed, {.cut_chance = 0.05, .refuse_chance = 0.2, .duplicate_chance = 0.2});
  pair.Serve();
  size_t asked = 0;
  const auto ask = [&](Channel& channel) {
    if (asked++ < 60) {
      EXPECT_TRUE(channel.Send(RequestHeader(asked, kBytes), pair.payload, pair.landing).ok());
    }
  };
  pair.at_client.when_opened = ask;
  pair.at_client.when_reply = [&](Channel& channel, const proto::WireHeader&, MutableBytes bytes) {
    EXPECT_TRUE(HasPattern(bytes, 2));
    ask(channel);
  };
  pair.at_client.when_closed = [&](Channel&, const Status&) {
    if (asked < 60) {
      EXPECT_TRUE(pair.client->Connect("sim://host:1", kNsPerSecond).has_value());
    }
  };
  pair.Open();
  EXPECT_THAT(pair.network.violations(), IsEmpty());
  *events = pair.network.event_count();
  return pair.network.trace_hash();
}

TEST(SimNetworkTest, ASeedIsAWholeRun) {
  std::set<uint64_t> hashes;
  for (const uint64_t seed : sim::SeedsToRun(50)) {
    size_t events = 0, again = 0;
    const uint64_t hash = RunSeed(seed, &events);
    EXPECT_EQ(hash, RunSeed(seed, &again)) << "SLACKLINE_SEED=" << seed;
    EXPECT_EQ(events, again);
    EXPECT_GT(events, 100u);
    hashes.insert(hash);
  }
  EXPECT_GT(hashes.size(), sim::SeedsToRun(50).size() * 9 / 10);
}

}  // namespace
}  // namespace slackline::transport
