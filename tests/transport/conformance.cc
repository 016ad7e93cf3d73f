#include "tests/transport/conformance.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace slackline::transport {

proto::WireHeader RequestHeader(uint64_t request_id, size_t payload_bytes,
                                proto::MessageKind kind) {
  proto::WireHeader header;
  header.kind = kind;
  header.request_id = request_id;
  header.epoch = 1;
  header.clock = 7;
  header.worker = 3;
  header.incarnation = 1;
  header.chunk = static_cast<ChunkIndex>(request_id % 100);
  header.codec = payload_bytes > 0 ? CodecId::kFp32 : CodecId::kNone;
  header.reply_codec = CodecId::kFp32;
  header.weight = 4;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  return header;
}

proto::WireHeader ReplyHeader(const proto::WireHeader& request, size_t payload_bytes) {
  proto::WireHeader header = request;
  header.kind = proto::MessageKind::kReply;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  header.version = 9;
  header.min_clock = 6;
  return header;
}

namespace {

// SplitMix64's finisher: neighbouring positions differ in every byte.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t PatternWord(uint64_t seed, size_t word) {
  return Mix(seed * 0x9E3779B97F4A7C15 + word + 1);
}

}  // namespace

void FillPattern(MutableBytes bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(seed, i / sizeof(uint64_t));
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i));
  }
}

bool HasPattern(ConstBytes bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(seed, i / sizeof(uint64_t));
    const size_t part = std::min(sizeof(word), bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, part) != 0) return false;
  }
  return true;
}

// At the end of a run: how many of the suite's cases each transport has passed.
class CountPrinter final : public testing::Environment {
 public:
  void TearDown() override {
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      const testing::TestSuite& suite = *all.GetTestSuite(i);
      const std::string_view name = suite.name();
      if (!name.ends_with("/TransportTest") || suite.test_to_run_count() == 0) continue;
      std::printf("transport conformance over %.*s: %d of %d cases passed\n",
                  static_cast<int>(name.size() - std::string_view("/TransportTest").size()),
                  name.data(), suite.successful_test_count(), suite.test_to_run_count());
    }
  }
};
const testing::Environment* const count_printer =
    testing::AddGlobalTestEnvironment(new CountPrinter);  // GoogleTest frees it.

TransportTest::TransportTest() : fixture(GetParam().make()) {
  server = fixture->MakeEndpoint();
  client = fixture->MakeEndpoint();
  server->set_handler(&server_handler);
  client->set_handler(&client_handler);
  Result<std::string> listening = server->Listen(fixture->ListenAddress());
  if (listening) {
    address = *listening;
  } else {
    ADD_FAILURE() << listening.error();
  }
}

TransportTest::~TransportTest() {
  KillClient();
  KillServer();
}

Channel* TransportTest::OpenChannel() {
  const size_t opened_there = server_handler.opened.size();
  const size_t opened_here = client_handler.opened.size();
  Result<Channel*> channel = client->Connect(address, 5 * kNsPerSecond);
  if (!channel) {
    ADD_FAILURE() << channel.error();
    return nullptr;
  }
  const bool open = PumpUntil([&] {
    return server_handler.opened.size() > opened_there &&
           client_handler.opened.size() > opened_here;
  });
  EXPECT_TRUE(open) << "the channel did not open";
  EXPECT_EQ(client_handler.opened.back(), *channel);
  return open ? *channel : nullptr;
}

bool TransportTest::PumpUntil(const std::function<bool()>& done) {
  std::vector<Endpoint*> endpoints;
  if (client) endpoints.push_back(client.get());
  if (server) endpoints.push_back(server.get());
  return fixture->PumpUntil(endpoints, done);
}

MutableBytes TransportTest::ClientMemory(size_t size_bytes) {
  client_regions_.push_back(client->Allocate(size_bytes).value());
  return client_regions_.back()->bytes();
}

MutableBytes TransportTest::ServerMemory(size_t size_bytes) {
  server_regions_.push_back(server->Allocate(size_bytes).value());
  return server_regions_.back()->bytes();
}

void TransportTest::ServeEcho(size_t max_payload_bytes) {
  const size_t size_bytes = std::max<size_t>(max_payload_bytes, 1);
  echo_landing_ = ServerMemory(size_bytes);
  echo_reply_ = ServerMemory(size_bytes);
  server_handler.when_arriving = [this](Channel&, const proto::WireHeader& header) {
    return Landing::Into(echo_landing_.first(header.payload_bytes));
  };
  server_handler.when_request = [this](Channel& channel, const proto::WireHeader& header,
                                       MutableBytes payload) {
    FillPattern(echo_reply_.first(payload.size()), header.request_id + kReplySeed);
    const Status status =
        channel.Reply(ReplyHeader(header, payload.size()), echo_reply_.first(payload.size()));
    EXPECT_TRUE(status.ok()) << status;
  };
}

void TransportTest::KillServer() {
  server_regions_.clear();
  server.reset();
}

void TransportTest::KillClient() {
  client_regions_.clear();
  client.reset();
}

}  // namespace slackline::transport
