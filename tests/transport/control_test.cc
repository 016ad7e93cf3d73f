// The control plane's two ends against each other, and against strangers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "common/byte_order.h"
#include "common/mutex.h"
#include "common/random.h"
#include "common/thread.h"
#include "tests/transport/raw_socket.h"
#include "transport/control/control_channel.h"
#include "transport/control/control_frame.h"
#include "transport/control/control_link.h"

namespace slackline::transport {
namespace {

using testing::HasSubstr;

constexpr TimeNs kPatienceNs = 30 * kNsPerSecond;

control::Envelope Barrier(const std::string& name) {
  control::Envelope message;
  message.mutable_barrier_arrive()->set_name(name);
  return message;
}

// A list of what happened on another thread, to wait for.
class EventLog {
 public:
  void Add(std::string event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.NotifyAll();
  }
  bool WaitFor(const std::string& event) { return WaitForCount(event, 1); }
  // Events that begin with `prefix`.
  bool WaitForCount(const std::string& prefix, size_t count) {
    const SteadyTimeSource time;
    const TimeNs deadline_ns = time.NowNs() + kPatienceNs;
    MutexLock lock(mutex_);
    while (CountLocked(prefix) < count) {
      const TimeNs left_ns = deadline_ns - time.NowNs();
      if (left_ns <= 0) return false;
      (void)changed_.WaitFor(lock, left_ns);
    }
    return true;
  }
  size_t Count(const std::string& prefix) {
    MutexLock lock(mutex_);
    return CountLocked(prefix);
  }

 private:
  size_t CountLocked(const std::string& prefix) SLACKLINE_REQUIRES(mutex_) {
    return static_cast<size_t>(std::count_if(events_.begin(), events_.end(),
                                             [&](const auto& e) { return e.starts_with(prefix); }));
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> events_ SLACKLINE_GUARDED_BY(mutex_);
};

// A server on a thread of its own. It answers a barrier's arrival by its name: "echo..." is
// released, "error" refused, "close" closes the connection, "silence" is never answered,
// "notice" is answered by a notice, "flood" by more than any queue holds.
class TestServer {
 public:
  explicit TestServer(const std::string& at = "127.0.0.1:0") {
    ControlServer::Callbacks callbacks;
    callbacks.on_opened = [this](uint64_t, const std::string&) { log.Add("opened"); };
    callbacks.on_closed = [this](uint64_t, const Status& status) {
      log.Add("closed " + status.ToString());
    };
    callbacks.on_message = [this](uint64_t id, const control::Envelope& message) {
      OnMessage(id, message);
    };
    callbacks.on_tick = [this] { log.Add("tick"); };
    Result<std::unique_ptr<ControlServer>> made =
        ControlServer::Create(at, 10 * kNsPerMs, std::move(callbacks));
    if (!made) {
      ADD_FAILURE() << made.error();
      return;
    }
    server = std::move(*made);
    thread_ = Thread("test-server", [this] { server->Run(); });
  }
  ~TestServer() {
    if (server) server->Stop();
    thread_.Join();
  }

  EventLog log;
  std::unique_ptr<ControlServer> server;

 private:
  void OnMessage(uint64_t id, const control::Envelope& message) {
    const std::string& name = message.barrier_arrive().name();
    log.Add("message " + name.substr(0, 32));
    control::Envelope answer;
    answer.set_answers(message.id());
    if (name.starts_with("echo")) {
      answer.mutable_barrier_release()->set_name(name);
    } else if (name == "error") {
      answer.mutable_error()->set_code(static_cast<uint32_t>(StatusCode::kFailedPrecondition));
      answer.mutable_error()->set_message("not yet");
    } else if (name == "strange error") {
      answer.mutable_error()->set_code(4711);
    } else if (name == "notice") {
      answer.set_answers(0);
      answer.mutable_barrier_release()->set_name("news");
    } else if (name == "close") {
      // Several frames: the close has to wait for the last of them.
      for (int i = 0; i < 3; ++i)
        server->Send(id, Barrier("goodbye" + std::string(200u << 10, 'x')));
      return server->Close(id);
    } else if (name == "flood") {
      for (size_t sent = 0; sent <= kMaxControlQueueBytes + (16u << 20); sent += 16u << 20) {
        server->Send(id, Barrier(std::string(16u << 20, 'x')));
      }
      return;
    } else {
      return;
    }
    server->Send(id, answer);
  }

  Thread thread_;
};

struct TestClient {
  explicit TestClient(const std::string& address) {
    ControlClient::Callbacks callbacks;
    callbacks.on_notice = [this](const control::Envelope& message) {
      const std::string name = message.barrier_release().name() + message.barrier_arrive().name();
      log.Add("notice " + name.substr(0, 32));
    };
    callbacks.on_reconnected = [this] { log.Add("reconnected"); };
    callbacks.on_lost = [this](const Status& status) { log.Add("lost " + status.ToString()); };
    ControlClient::Options options;
    options.address = address;
    options.backoff_min_ns = 5 * kNsPerMs;
    options.backoff_max_ns = 50 * kNsPerMs;
    Result<std::unique_ptr<ControlClient>> made =
        ControlClient::Create(options, std::move(callbacks));
    if (made) {
      client = std::move(*made);
    } else {
      ADD_FAILURE() << made.error();
    }
  }

  EventLog log;
  std::unique_ptr<ControlClient> client;  // Last: its thread writes to the log.
};

TEST(ControlTest, ACallIsAnswered) {
  TestServer server;
  TestClient client(server.server->address());
  const Result<control::Envelope> answer = client.client->Call(Barrier("echo 1"), kPatienceNs);
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->barrier_release().name(), "echo 1");
  EXPECT_TRUE(client.client->connected());
}

TEST(ControlTest, ManyCallsAtOnceGetTheirOwnAnswers) {
  TestServer server;
  TestClient client(server.server->address());
  EventLog done;
  for (int i = 0; i < 500; ++i) {
    const std::string name = "echo " + std::to_string(i);
    client.client->CallAsync(
        Barrier(name), kPatienceNs, [&done, name](const Result<control::Envelope>& answer) {
          const bool right = answer && answer->barrier_release().name() == name;
          done.Add(right ? "right" : "wrong");
        });
  }
  EXPECT_TRUE(done.WaitForCount("right", 500));
}

TEST(ControlTest, LargeMessagesPass) {
  TestServer server;
  TestClient client(server.server->address());
  const std::string name = "echo" + std::string(5u << 20, 'x');
  const Result<control::Envelope> answer = client.client->Call(Barrier(name), kPatienceNs);
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->barrier_release().name(), name);
}

TEST(ControlTest, NoticesGoBothWays) {
  TestServer server;
  TestClient client(server.server->address());
  ASSERT_TRUE(client.client->Notify(Barrier("notice")).ok());
  EXPECT_TRUE(server.log.WaitFor("message notice"));
  EXPECT_TRUE(client.log.WaitFor("notice news"));
}

TEST(ControlTest, AnErrorAnswerBecomesItsStatus) {
  TestServer server;
  TestClient client(server.server->address());
  const Result<control::Envelope> refused = client.client->Call(Barrier("error"), kPatienceNs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), FailedPrecondition("not yet"));
  const auto strange = client.client->Call(Barrier("strange error"), kPatienceNs);
  ASSERT_FALSE(strange);
  EXPECT_EQ(strange.error().code(), StatusCode::kInternal);
}

TEST(ControlTest, ACallWithoutAnswerEndsAtItsTimeout) {
  TestServer server;
  TestClient client(server.server->address());
  const auto answer = client.client->Call(Barrier("silence"), 50 * kNsPerMs);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(answer.error().message(), HasSubstr("50 ms"));
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs)) << "the connection goes on";
}

TEST(ControlTest, AMessageAboveTheLimitIsNotSent) {
  TestServer server;
  TestClient client(server.server->address());
  const auto answer = client.client->Call(Barrier(std::string(kMaxControlBytes, 'x')), kPatienceNs);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs)) << "the connection goes on";
}

TEST(ControlTest, AClosedConnectionDeliversWhatWasQueuedAndReconnects) {
  TestServer server;
  TestClient client(server.server->address());
  const auto answer = client.client->Call(Barrier("close"), kPatienceNs);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(client.log.WaitForCount("notice goodbye", 3));
  EXPECT_TRUE(client.log.WaitFor("lost UNAVAILABLE"));
  EXPECT_TRUE(client.log.WaitFor("reconnected"));
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
}

TEST(ControlTest, AClientFindsARestartedServer) {
  std::optional<TestServer> server(std::in_place);
  const std::string address = server->server->address();
  TestClient client(address);
  server.reset();
  EXPECT_TRUE(client.log.WaitFor("lost"));
  EXPECT_FALSE(client.client->connected());
  EXPECT_EQ(client.client->Notify(Barrier("x")).code(), StatusCode::kUnavailable);
  server.emplace(address);
  EXPECT_TRUE(client.log.WaitFor("reconnected"));
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
}

TEST(ControlTest, ALeavingClientIsNoticed) {
  TestServer server;
  { TestClient client(server.server->address()); }
  EXPECT_TRUE(server.log.WaitFor("closed UNAVAILABLE"));
}

TEST(ControlTest, ANoticeSentJustBeforeLeavingArrives) {
  TestServer server;
  {
    TestClient client(server.server->address());
    ASSERT_TRUE(client.client->Notify(Barrier("goodbye")).ok());
  }
  EXPECT_TRUE(server.log.WaitFor("message goodbye"));
}

TEST(ControlTest, AUsedPortIsNamed) {
  TestServer server;
  ControlServer::Callbacks callbacks;
  callbacks.on_message = [](uint64_t, const control::Envelope&) {};
  const auto second = ControlServer::Create(server.server->address(), kNsPerSecond, callbacks);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(second.error().message(), HasSubstr(server.server->address()));
}

TEST(ControlTest, APortIsFreeAtOnceForTheNextServer) {
  std::string address;
  {
    TestServer server;
    address = server.server->address();
    TestClient client(address);
    ASSERT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
  }
  TestServer next(address);
  EXPECT_NE(next.server, nullptr);
}

TEST(ControlTest, BadAddressesAreRefused) {
  ControlServer::Callbacks callbacks;
  callbacks.on_message = [](uint64_t, const control::Envelope&) {};
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1"}) {
    SCOPED_TRACE(address);
    const auto server = ControlServer::Create(address, kNsPerSecond, callbacks);
    ASSERT_FALSE(server);
    EXPECT_EQ(server.error().code(), StatusCode::kInvalidArgument);
    const auto client = ControlClient::Create({.address = address}, {});
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ControlTest, AnUnreachableCoordinatorIsGivenUpInTime) {
  std::string address;
  {
    TestServer server;
    address = server.server->address();
  }
  const SteadyTimeSource time;
  const TimeNs start_ns = time.NowNs();
  const auto client =
      ControlClient::Create({.address = address, .connect_timeout_ns = kNsPerSecond}, {});
  const TimeNs took_ns = time.NowNs() - start_ns;
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.error().message(),
              HasSubstr("cannot reach the coordinator at " + address + " after 1 s: "));
  EXPECT_THAT(client.error().message(), HasSubstr("refused"));
  EXPECT_GE(took_ns, kNsPerSecond);
  EXPECT_LT(took_ns, 5 * kNsPerSecond);
}

// ---- Strangers ----

class ControlStrangerTest : public testing::Test {
 protected:
  // The client has spoken: it is not one of those that connect and say nothing.
  ControlStrangerTest() { EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs)); }

  // The stranger is closed, and a well-behaved client never noticed.
  void ExpectRefused(RawSocket& stranger) {
    EXPECT_TRUE(stranger.WaitForClose());
    EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
    EXPECT_EQ(client.log.Count("lost"), 0u);
  }

  TestServer server;
  TestClient client{server.server->address()};
};

TEST_F(ControlStrangerTest, AWebBrowserIsClosedAtOnce) {
  RawSocket stranger(server.server->address());
  stranger.Write("GET / HTTP/1.1\r\n\r\n");
  ExpectRefused(stranger);
  EXPECT_TRUE(server.log.WaitFor("closed DATA_LOSS"));
}

TEST_F(ControlStrangerTest, RandomBytesAreRefused) {
  Rng rng(7);
  for (int turn = 0; turn < 50; ++turn) {
    RawSocket stranger(server.server->address());
    std::vector<std::byte> bytes(4 + rng.Below(1000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Below(256));
    stranger.Write(bytes);
    ASSERT_TRUE(stranger.WaitForClose());
  }
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
  EXPECT_EQ(client.log.Count("lost"), 0u);
}

TEST_F(ControlStrangerTest, AnAbsurdLengthIsRefused) {
  std::array<std::byte, kControlHeaderBytes> header{};
  StoreLe<uint32_t>(header.data(), kControlMagic);
  StoreLe<uint32_t>(header.data() + 4, kMaxControlBytes + 1);
  RawSocket stranger(server.server->address());
  stranger.Write(header);
  ExpectRefused(stranger);
  EXPECT_TRUE(server.log.WaitFor("closed INVALID_ARGUMENT"));
}

TEST_F(ControlStrangerTest, ADamagedBodyIsRefused) {
  std::string frame = **EncodeControlFrame(Barrier("echo"));
  frame.back() = static_cast<char>(frame.back() ^ 1);
  RawSocket stranger(server.server->address());
  stranger.Write(frame);
  ExpectRefused(stranger);
  EXPECT_EQ(server.log.Count("message echo"), 2u) << "only the well-behaved client's";
}

TEST_F(ControlStrangerTest, ATruncatedFrameHarmsNobody) {
  const std::string frame = **EncodeControlFrame(Barrier("echo"));
  for (size_t length = 1; length < frame.size(); ++length) {
    RawSocket stranger(server.server->address());
    stranger.Write(std::string_view(frame).substr(0, length));
  }
  EXPECT_TRUE(server.log.WaitForCount("closed", frame.size() - 1));
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
  EXPECT_EQ(client.log.Count("lost"), 0u);
}

TEST_F(ControlStrangerTest, AReaderThatDoesNotReadIsClosed) {
  RawSocket stranger(server.server->address());
  stranger.Write(**EncodeControlFrame(Barrier("flood")));
  EXPECT_TRUE(server.log.WaitFor("closed RESOURCE_EXHAUSTED"));
  EXPECT_TRUE(client.client->Call(Barrier("echo"), kPatienceNs));
}

TEST(ControlFrameTest, RoundTripsAndRejectsDamage) {
  const control::Envelope message = Barrier("x");
  std::string frame = **EncodeControlFrame(message);
  const auto bytes = std::as_bytes(std::span(frame));
  const auto header = ParseControlHeader(bytes.first<kControlHeaderBytes>());
  ASSERT_TRUE(header) << header.error();
  EXPECT_EQ(header->body_bytes, frame.size() - kControlHeaderBytes);
  const auto parsed = ParseControlBody(*header, frame.substr(kControlHeaderBytes));
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_EQ(parsed->barrier_arrive().name(), "x");
  frame[0] = 'X';
  EXPECT_EQ(ParseControlHeader(std::as_bytes(std::span(frame)).first<kControlHeaderBytes>())
                .error()
                .code(),
            StatusCode::kDataLoss);
}

}  // namespace
}  // namespace slackline::transport
