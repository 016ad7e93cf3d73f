// The small parts of the transport library: addresses, tables, queues, the log of bad peers.
#include <gtest/gtest.h>

#include <unordered_map>

#include "common/random.h"
#include "tests/transport/conformance.h"
#include "transport/address.h"
#include "transport/peer_log.h"
#include "transport/request_table.h"
#include "transport/tcp/send_queue.h"

namespace slackline::transport {
namespace {

TEST(AddressTest, RoundTrips) {
  for (const char* text : {"tcp://127.0.0.1:80", "tcp://[::1]:0", "tcp://node-7.rack_2:65535"}) {
    const Result<Address> address = ParseAddress(text, "tcp");
    ASSERT_TRUE(address) << address.error();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(ParseAddress("tcp://[::1]:42", "tcp")->host, "::1");
  EXPECT_EQ(ParseHostPort("h:1")->ToString(), "h:1");
}

TEST(AddressTest, MessagesSayWhatIsExpected) {
  const Result<Address> address = ParseAddress("udp://h:1", "tcp");
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error(),
            InvalidArgument("'udp://h:1' is not an address: expected tcp://host:port"));
  EXPECT_LT(ParseHostPort(std::string(100'000, 'x')).error().message().size(), 200u);
}

TEST(AddressTest, AListGivesTheWayOfItsScheme) {
  const std::string list = "shm://8f14e45f:7,tcp://h:9";
  EXPECT_EQ(ParseAddress(list, "tcp")->ToString(), "tcp://h:9");
  EXPECT_EQ(ParseAddress(list, "shm")->ToString(), "shm://8f14e45f:7");
  EXPECT_FALSE(ParseAddress(list, "rdma"));
  EXPECT_EQ(SplitAlternatives(list).size(), 2u);
  for (const char* bad : {"", ",", "tcp://h:1,", ",tcp://h:1", "a,b,c,d,e,f,g,h,i"}) {
    EXPECT_TRUE(SplitAlternatives(bad).empty()) << bad;
  }
}

TEST(PeerLogTest, OneLineAPeerAndMinute) {
  PeerLog log;
  uint64_t suppressed = 0;
  EXPECT_TRUE(log.ShouldLog("a", 0, &suppressed));
  EXPECT_FALSE(log.ShouldLog("a", 1, &suppressed));
  EXPECT_FALSE(log.ShouldLog("a", PeerLog::kIntervalNs - 1, &suppressed));
  EXPECT_TRUE(log.ShouldLog("b", 2, &suppressed));
  EXPECT_EQ(suppressed, 0u);
  EXPECT_TRUE(log.ShouldLog("a", PeerLog::kIntervalNs, &suppressed));
  EXPECT_EQ(suppressed, 2u);
}

TEST(PeerLogTest, TheOldestPeerGivesWay) {
  PeerLog log;
  uint64_t suppressed = 0;
  for (size_t i = 0; i <= PeerLog::kMaxPeers; ++i) {
    EXPECT_TRUE(log.ShouldLog(std::to_string(i), static_cast<TimeNs>(i), &suppressed));
  }
  EXPECT_FALSE(log.ShouldLog("1", 1000, &suppressed));
  EXPECT_TRUE(log.ShouldLog("0", 1000, &suppressed)) << "forgotten";
}

TEST(RequestTableTest, AgreesWithAMapOverRandomHistories) {
  RequestTable table;
  std::unordered_map<uint64_t, size_t> model;
  Rng rng(11);
  for (int step = 0; step < 200'000; ++step) {
    // Few distinct ids, many of them with the same home.
    const uint64_t id = rng.Below(1500) << (rng.Below(2) * 40);
    if (rng.Below(2) == 0) {
      const bool fits = !model.contains(id) && model.size() < kMaxOpenRequests;
      RequestTable::Entry* entry = table.Insert(id);
      ASSERT_EQ(entry != nullptr, fits);
      if (entry != nullptr) {
        model[id] = static_cast<size_t>(step);
        entry->landing = MutableBytes(static_cast<std::byte*>(nullptr), 0);
      }
    } else {
      ASSERT_EQ(table.Erase(id), model.erase(id) == 1);
    }
    ASSERT_EQ(table.size(), model.size());
    const uint64_t other = rng.Below(1500) << (rng.Below(2) * 40);
    ASSERT_EQ(table.Find(other) != nullptr, model.contains(other));
  }
  table.Clear();
  EXPECT_EQ(table.size(), 0u);
  for (const auto& [id, step] : model) EXPECT_EQ(table.Find(id), nullptr);
}

// Writes everything in random pieces; the bytes must come out in order, each message once.
TEST(SendQueueTest, AnySplitOfWritesGivesTheSameBytes) {
  Rng rng(5);
  std::vector<std::byte> payload(1000);
  FillPattern(payload, 1);
  for (int turn = 0; turn < 200; ++turn) {
    SendQueue queue(16);
    std::vector<std::byte> expected;
    const uint64_t messages = 1 + rng.Below(16);
    for (uint64_t id = 0; id < messages; ++id) {
      const ConstBytes part = ConstBytes(payload).first(rng.Below(2) * rng.Below(1000));
      const proto::WireHeader header = RequestHeader(id, part.size());
      std::array<std::byte, proto::kWireHeaderBytes> bytes;
      proto::EncodeWireHeader(header, bytes);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
      expected.insert(expected.end(), part.begin(), part.end());
      queue.Push(header, part);
    }
    EXPECT_EQ(queue.full(), messages == 16);
    std::vector<std::byte> written;
    uint64_t finished = 0;
    while (!queue.empty()) {
      std::array<iovec, 6> vectors;
      size_t total = 0;
      const size_t count = queue.Gather(vectors, 1 + rng.Below(700), &total);
      ASSERT_GT(total, 0u);
      size_t left = 1 + rng.Below(total);  // The socket takes a part.
      queue.Advance(left);
      for (size_t i = 0; i < count && left > 0; ++i) {
        const size_t take = std::min(left, vectors[i].iov_len);
        const auto* base = static_cast<const std::byte*>(vectors[i].iov_base);
        written.insert(written.end(), base, base + take);
        left -= take;
      }
      while (!queue.empty() && queue.FinishedHead() != nullptr) {
        EXPECT_EQ(queue.FinishedHead()->request_id, finished++);
        queue.Pop();
      }
    }
    EXPECT_EQ(finished, messages);
    ASSERT_EQ(written, expected);
  }
}

}  // namespace
}  // namespace slackline::transport
