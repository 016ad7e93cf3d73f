// A server between a coordinator and a worker: what it takes from the one, does for the other, and
// how it ends.
#include "server/server_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>

#include "server/checkpoint/manifest.h"
#include "tests/server/scripted_coordinator.h"
#include "tests/server/shard_harness.h"
#include "transport/factory.h"

namespace slackline::server {
namespace {

namespace fs = std::filesystem;
using control::Envelope;
using testing::HasSubstr;

// While TZ is not set, the C library loads the time zone anew for every line that is logged, under
// a lock that ThreadSanitizer does not see. Set, it is loaded once, here, before there are threads.
class FixedTimeZone final : public testing::Environment {
 public:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};
const testing::Environment* const fixed_time_zone =
    testing::AddGlobalTestEnvironment(new FixedTimeZone);

// A process that runs on a thread of its own.
class RunningServer {
 public:
  RunningServer(const std::string& coordinator, uint32_t shards,
                TimeNs connect_timeout_ns = 15 * kNsPerSecond) {
    ServerOptions options;
    options.connect_timeout_ns = connect_timeout_ns;
    options.coordinator = coordinator;
    options.shards = shards;
    auto process = ServerProcess::Create(options);
    EXPECT_TRUE(process.has_value()) << process.error();
    process_ = std::move(*process);
    thread_ = Thread("server", [this] { result_ = process_->Run(); });
  }
  std::vector<std::string> addresses() const { return process_->addresses(); }
  // Waits until Run has returned.
  Status Result() {
    thread_.Join();
    return result_;
  }

 private:
  std::unique_ptr<ServerProcess> process_;
  Status result_ = Internal("still running");
  Thread thread_;
};

Envelope ViewEnvelope(uint64_t version, const std::vector<Member>& members) {
  Envelope envelope;
  *envelope.mutable_view() = TestView(version, members);
  return envelope;
}

// Two chunks of four, one on each of two shards.
control::ShardMap TwoShards(const std::vector<std::string>& addresses) {
  control::ShardMap map = TestMap(TestJob(0), {4, 4});
  map.mutable_chunks(1)->set_shard(1);
  for (const std::string& address : addresses) map.add_shard_addresses(address);
  return map;
}

Envelope MapEnvelope(const control::ShardMap& map) {
  Envelope envelope;
  *envelope.mutable_shard_map() = map;
  return envelope;
}

Envelope ShutdownEnvelope(bool failed) {
  Envelope envelope;
  envelope.mutable_shutdown()->set_reason("the test is over");
  envelope.mutable_shutdown()->set_failed(failed);
  return envelope;
}

// A heartbeat in which every one of `shards` reports has applied this.
auto AllApplied(int shards, Epoch epoch, uint64_t view_version) {
  return [=](const Envelope& message) {
    if (!message.has_heartbeat() || message.heartbeat().shards_size() != shards) return false;
    for (const control::ShardReport& report : message.heartbeat().shards()) {
      if (report.epoch() != epoch || report.view_version() != view_version) return false;
    }
    return true;
  };
}

// A worker on the test's thread that asks one thing at a time.
class OneWorker final : public transport::Handler {
 public:
  explicit OneWorker(const std::string& address) {
    endpoint_ = *transport::CreateEndpoint("tcp");
    endpoint_->set_handler(this);
    channel_ = *endpoint_->Connect(address, 5 * kNsPerSecond);
    while (!open_ && !closed_) endpoint_->Poll(kNsPerSecond);
    EXPECT_TRUE(open_);
    EXPECT_EQ(Ask(proto::MessageKind::kHello, 0, {}), proto::ReplyStatus::kOk);
  }
  proto::ReplyStatus Ask(proto::MessageKind kind, ChunkIndex chunk,
                         const std::vector<float>& data) {
    proto::WireHeader header;
    header.kind = kind;
    header.request_id = ++last_id_;
    header.epoch = 1;
    header.incarnation = 1;
    header.chunk = chunk;
    header.weight = 1;
    header.codec = data.empty() ? CodecId::kNone : CodecId::kFp32;
    header.reply_codec = CodecId::kFp32;
    header.payload_bytes = static_cast<uint32_t>(data.size() * sizeof(float));
    reply_.reset();
    EXPECT_TRUE(channel_
                    ->Send(header, std::as_bytes(std::span(data)),
                           std::as_writable_bytes(std::span(landing)))
                    .ok());
    while (!reply_ && !closed_) endpoint_->Poll(kNsPerSecond);
    return reply_ ? reply_->status : proto::ReplyStatus::kShuttingDown;
  }

  void OnOpened(transport::Channel&) override { open_ = true; }
  void OnClosed(transport::Channel&, const Status&) override { closed_ = true; }
  void OnReply(transport::Channel&, const proto::WireHeader& header, MutableBytes) override {
    reply_ = header;
  }

  std::vector<float> landing = std::vector<float>(4);

 private:
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::Channel* channel_ = nullptr;
  bool open_ = false;
  bool closed_ = false;
  uint64_t last_id_ = 0;
  std::optional<proto::WireHeader> reply_;
};

TEST(ServerProcess, ServesAJobFromRegistrationToShutdown) {
  ScriptedCoordinator coordinator;
  RunningServer server(coordinator.address(), 2);
  ASSERT_TRUE(coordinator.Hear([](const Envelope& message) {
    return message.has_register_server() && message.register_server().shard_addresses_size() == 2 &&
           !message.register_server().instance().empty();
  }));
  ASSERT_TRUE(coordinator.Hear([](const Envelope& message) {
    return message.has_heartbeat() && message.heartbeat().waiting_for() == "the shard map";
  }));
  coordinator.Say(ViewEnvelope(1, {{0, 1, 0}}));
  coordinator.Say(MapEnvelope(TwoShards(server.addresses())));
  ASSERT_TRUE(coordinator.Hear(AllApplied(2, 1, 1)));

  for (uint32_t shard = 0; shard < 2; ++shard) {
    OneWorker worker(server.addresses()[shard]);
    const std::vector<float> weights(4, static_cast<float>(shard + 1));
    EXPECT_EQ(worker.Ask(proto::MessageKind::kInit, shard, weights), proto::ReplyStatus::kOk);
    EXPECT_EQ(worker.Ask(proto::MessageKind::kPushPull, shard, std::vector<float>(4, 1)),
              proto::ReplyStatus::kOk);
    EXPECT_THAT(worker.landing, testing::Each(static_cast<float>(shard)));
  }
  EXPECT_TRUE(coordinator.Hear([](const Envelope& message) {
    if (!message.has_heartbeat() || message.heartbeat().shards_size() != 2) return false;
    for (const control::ShardReport& report : message.heartbeat().shards()) {
      if (report.chunks_initialised() != 1 || report.min_clock() != 0) return false;
    }
    return true;
  }));

  const std::string directory = testing::TempDir() + "slackline_server_process_test";
  fs::create_directories(directory);
  Envelope take;
  take.mutable_take_checkpoint()->set_checkpoint_id(7);
  take.mutable_take_checkpoint()->set_directory(directory);
  take.mutable_take_checkpoint()->set_final(true);
  auto done = [&directory](uint32_t shard) {
    return [&directory, shard](const Envelope& message) {
      const control::CheckpointShardDone& report = message.checkpoint_shard_done();
      return message.has_checkpoint_shard_done() && report.checkpoint_id() == 7 &&
             report.shard() == shard && report.error().empty() &&
             report.file() == ShardFileName(shard, 2) &&
             fs::file_size(directory + "/" + report.file()) == report.bytes();
    };
  };
  coordinator.Say(take);
  EXPECT_TRUE(coordinator.Hear(done(0)));
  EXPECT_TRUE(coordinator.Hear(done(1)));
  // The command again, as after a lost connection: the same answer.
  coordinator.Forget();
  coordinator.Say(take);
  EXPECT_TRUE(coordinator.Hear(done(0)));
  EXPECT_TRUE(coordinator.Hear(done(1)));
  fs::remove_all(directory);

  coordinator.Say(ShutdownEnvelope(false));
  EXPECT_TRUE(server.Result().ok()) << server.Result();
}

TEST(ServerProcess, TrainingGoesOnWhileTheCoordinatorIsAway) {
  auto coordinator = std::make_unique<ScriptedCoordinator>();
  const std::string address = coordinator->address();
  RunningServer server(address, 1);
  coordinator->Say(ViewEnvelope(1, {{0, 1, 0}}));
  control::ShardMap map = TestMap(TestJob(0), {4});
  coordinator->Say(MapEnvelope(map));
  ASSERT_TRUE(coordinator->Hear(AllApplied(1, 1, 1)));
  std::string instance;
  ASSERT_TRUE(coordinator->Hear([&](const Envelope& message) {
    instance = message.register_server().instance();
    return message.has_register_server();
  }));
  coordinator.reset();

  OneWorker worker(server.addresses()[0]);
  EXPECT_EQ(worker.Ask(proto::MessageKind::kInit, 0, std::vector<float>(4, 3)),
            proto::ReplyStatus::kOk);
  EXPECT_EQ(worker.Ask(proto::MessageKind::kPushPull, 0, std::vector<float>(4, 1)),
            proto::ReplyStatus::kOk);
  EXPECT_THAT(worker.landing, testing::Each(2));

  coordinator = std::make_unique<ScriptedCoordinator>(address);
  EXPECT_TRUE(coordinator->Hear([&](const Envelope& message) {
    return message.has_register_server() && message.register_server().instance() == instance;
  }));
  EXPECT_TRUE(coordinator->Hear(AllApplied(1, 1, 1)));
  coordinator->Say(ViewEnvelope(2, {}));
  EXPECT_TRUE(coordinator->Hear(AllApplied(1, 1, 2)));
  coordinator->Say(ShutdownEnvelope(true));
  EXPECT_EQ(server.Result().code(), StatusCode::kAborted);
  EXPECT_THAT(server.Result().message(), HasSubstr("the test is over"));
}

TEST(ServerProcess, AnotherRunUnderTheSameAddressIsNotJoined) {
  auto coordinator = std::make_unique<ScriptedCoordinator>();
  const std::string address = coordinator->address();
  RunningServer server(address, 1);
  coordinator.reset();
  coordinator = std::make_unique<ScriptedCoordinator>(address, "another run");
  EXPECT_EQ(server.Result().code(), StatusCode::kAborted);
}

TEST(ServerProcess, ARegistrationThatEndedIsRepeated) {
  ScriptedCoordinator coordinator;
  RunningServer server(coordinator.address(), 1);
  ASSERT_TRUE(coordinator.Hear([](const Envelope& m) { return m.has_heartbeat(); }));
  // Its lease ran out: heartbeats are refused until it registers again, which is refused for good.
  coordinator.RefuseWith(FailedPrecondition("this connection is not registered"));
  EXPECT_EQ(server.Result().code(), StatusCode::kFailedPrecondition);
}

TEST(ServerProcess, ARegistrationThatIsNotAnsweredIsRepeated) {
  ScriptedCoordinator coordinator;
  RunningServer server(coordinator.address(), 1, 500 * kNsPerMs);
  uint64_t before = 0;
  ASSERT_TRUE(coordinator.Hear([&](const Envelope& message) {
    before = message.heartbeat().sequence();
    return message.has_heartbeat();
  }));
  // Its lease ran out, and the coordinator stands still when it registers again.
  coordinator.LoseRegistration();
  EXPECT_TRUE(coordinator.Hear([&](const Envelope& message) {
    return message.has_heartbeat() && message.heartbeat().sequence() > before + 50;
  })) << "heartbeats go on";
  coordinator.Say(ShutdownEnvelope(false));
  EXPECT_TRUE(server.Result().ok()) << server.Result();
}

TEST(ServerProcess, ACheckpointThatCannotBeLoadedEndsTheServer) {
  ScriptedCoordinator coordinator;
  RunningServer server(coordinator.address(), 1);
  control::ShardMap map = TestMap(TestJob(0), {4});
  map.set_restore_from(testing::TempDir() + "slackline_no_such_checkpoint");
  coordinator.Say(MapEnvelope(map));
  EXPECT_TRUE(coordinator.Hear([](const Envelope& message) {
    return message.has_leave() &&
           message.leave().reason().find("slackline_no_such_checkpoint") != std::string::npos;
  }));
  EXPECT_EQ(server.Result().code(), StatusCode::kNotFound);
}

TEST(ServerProcess, AskedToStopItSaysGoodbye) {
  ScriptedCoordinator coordinator;
  RunningServer server(coordinator.address(), 1);
  ServerProcess::RequestStop();
  EXPECT_TRUE(server.Result().ok());
  EXPECT_TRUE(coordinator.Hear([](const Envelope& message) { return message.has_leave(); }));
}

TEST(ServerProcess, StartUpErrorsAreClear) {
  ServerOptions options;
  options.coordinator = "127.0.0.1:1";  // Nobody listens there.
  options.connect_timeout_ns = 300 * kNsPerMs;
  auto process = ServerProcess::Create(options);
  ASSERT_FALSE(process.has_value());
  EXPECT_EQ(process.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(process.error().message(), HasSubstr("127.0.0.1:1"));

  ScriptedCoordinator coordinator;
  options.coordinator = coordinator.address();
  options.port = static_cast<uint16_t>(
      std::stoi(coordinator.address().substr(coordinator.address().rfind(':') + 1)));
  process = ServerProcess::Create(options);
  ASSERT_FALSE(process.has_value());
  EXPECT_EQ(process.error().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(process.error().message(), HasSubstr(std::to_string(options.port)));

  options.port = 0;
  coordinator.RefuseWith(Aborted("the job has ended"));
  process = ServerProcess::Create(options);
  ASSERT_FALSE(process.has_value());
  EXPECT_EQ(process.error().message(), "the job has ended");
}

}  // namespace
}  // namespace slackline::server
