// The worker's standing with a coordinator that goes away, comes back, forgets and refuses.
#include "worker/client/control_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/fake_coordinator.h"
#include "tests/worker/test_shard.h"
#include "worker/client/client.h"

namespace slackline::worker {
namespace {

using control::Envelope;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint32_t kRank = 3;
constexpr uint32_t kElements = 1024;

class ControlSessionTest : public ::testing::Test {
 protected:
  void SetUp() override { SetRegistered("run"); }

  void SetRegistered(const std::string& run_id) {
    Envelope answer;
    control::Registered& registered = *answer.mutable_registered();
    registered.set_id(kRank);
    registered.set_incarnation(2);
    registered.set_lease_ms(2000);
    registered.set_heartbeat_ms(10);
    registered.set_expected_workers(1);
    registered.set_expected_servers(1);
    registered.set_run_id(run_id);
    *registered.mutable_job() = MakeTestMap({"unused"}, 1, kElements).job();
    coordinator_.SetAnswer(Envelope::kRegisterWorker, answer);
  }
  control::View View(uint64_t version, bool with_me) {
    control::View view;
    view.set_version(version);
    if (with_me) {
      control::Member& member = *view.add_members();
      member.set_worker(kRank);
      member.set_incarnation(2);
      member.set_first_clock(7);
    }
    return view;
  }
  ControlSession::Options Options() {
    ControlSession::Options options;
    options.coordinator = coordinator_.address();
    options.report_ns = kNsPerSecond / 20;
    options.on_wait = [this](const std::string& line) {
      MutexLock lock(mutex_);
      lines_.push_back(line);
      changed_.NotifyAll();
    };
    options.on_ended = [this](const Status& status) {
      MutexLock lock(mutex_);
      ended_.push_back(status);
      changed_.NotifyAll();
    };
    return options;
  }
  std::unique_ptr<ControlSession> Open() {
    auto session = ControlSession::Open(Options());
    EXPECT_TRUE(session) << session.error();
    return session ? std::move(*session) : nullptr;
  }
  Status WaitForEnd() {
    const TimeNs deadline_ns = SteadyTimeSource().NowNs() + 20 * kNsPerSecond;
    MutexLock lock(mutex_);
    while (ended_.empty()) {
      if (!changed_.WaitFor(lock, deadline_ns - SteadyTimeSource().NowNs())) return Status();
    }
    return ended_.front();
  }
  std::vector<std::string> Lines() {
    MutexLock lock(mutex_);
    return lines_;
  }
  static Envelope Arrival() {
    Envelope arrival;
    arrival.mutable_barrier_arrive()->set_name("b");
    return arrival;
  }

  FakeCoordinator coordinator_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_;
  std::vector<Status> ended_;
};

TEST_F(ControlSessionTest, AReconnectRegistersTheSameInstanceAndQuestionsWait) {
  auto session = Open();
  ASSERT_TRUE(session);
  coordinator_.Stop();
  Result<Envelope> answer = Err(Internal("not asked"));
  Thread asker("asker", [&] {
    answer = session->Ask(Arrival(), 20 * kNsPerSecond, "the others at barrier 'b'");
  });
  coordinator_.Start();
  asker.Join();
  EXPECT_TRUE(answer) << answer.error();
  const auto registrations = coordinator_.Received(Envelope::kRegisterWorker);
  ASSERT_EQ(registrations.size(), 2U);
  EXPECT_EQ(registrations[0].register_worker().instance(),
            registrations[1].register_worker().instance());
  EXPECT_FALSE(registrations[0].register_worker().instance().empty());
  EXPECT_TRUE(session->end_status().ok());
}

TEST_F(ControlSessionTest, ACoordinatorThatStaysAwayEndsEvenAWaitWithoutABound) {
  ControlSession::Options options = Options();
  options.coordinator_absence_ns = kNsPerSecond / 5;
  auto session = ControlSession::Open(options);
  ASSERT_TRUE(session) << session.error();
  coordinator_.Stop();
  const auto answer = (*session)->Ask(Arrival(), kNever, "a data lease");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.error().message(),
              AllOf(HasSubstr(coordinator_.address()), HasSubstr("has been away for 0 s")));
}

TEST_F(ControlSessionTest, ACoordinatorThatIsNotThereIsNamedOnce) {
  ControlSession::Options options = Options();
  options.connect_timeout_ns = kNsPerSecond / 5;
  coordinator_.Stop();
  const auto session = ControlSession::Open(options);
  ASSERT_FALSE(session);
  const std::string& message = session.error().message();
  EXPECT_THAT(message, HasSubstr("cannot reach the coordinator at " + coordinator_.address()));
  EXPECT_EQ(message.find("cannot reach"), message.rfind("cannot reach")) << message;
}

TEST_F(ControlSessionTest, ACoordinatorOfAnotherRunEndsThisLife) {
  auto session = Open();
  ASSERT_TRUE(session);
  coordinator_.Stop();
  SetRegistered("another run");
  coordinator_.Start();
  EXPECT_EQ(WaitForEnd().code(), StatusCode::kAborted);
}

TEST_F(ControlSessionTest, ARefusedRegistrationSaysWhyAndIsNotRepeated) {
  Envelope error;
  error.mutable_error()->set_code(static_cast<uint32_t>(StatusCode::kInvalidArgument));
  error.mutable_error()->set_message("--optimizer: worker 3 has adam, the job has sgd");
  coordinator_.SetAnswer(Envelope::kRegisterWorker, error);
  const auto session = ControlSession::Open(Options());
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error(), InvalidArgument("--optimizer: worker 3 has adam, the job has sgd"));
  EXPECT_EQ(coordinator_.Received(Envelope::kRegisterWorker).size(), 1U);
}

TEST_F(ControlSessionTest, APlaceThatMayBecomeFreeIsAskedForAgain) {
  Envelope error;
  error.mutable_error()->set_code(static_cast<uint32_t>(StatusCode::kUnavailable));
  error.mutable_error()->set_message("rank 3 belongs to a process that is away");
  coordinator_.SetAnswer(Envelope::kRegisterWorker, error);
  Result<std::unique_ptr<ControlSession>> session = Err(Internal("not opened"));
  Thread opener("opener", [&] { session = ControlSession::Open(Options()); });
  coordinator_.WaitFor(
      [](const auto& all) { return FakeCoordinator::Count(all, Envelope::kRegisterWorker) >= 2; },
      "a second registration");
  SetRegistered("run");
  opener.Join();
  ASSERT_TRUE(session) << session.error();
  EXPECT_THAT(Lines(), Contains(HasSubstr("rank 3 belongs to a process that is away")));
}

TEST_F(ControlSessionTest, TheWaitForTheStartSaysWhatIsMissingAndEnds) {
  Envelope page;
  page.mutable_status_page()->set_json(R"({"waiting_for": ["server 1", "worker 0"]})");
  coordinator_.SetAnswer(Envelope::kStatusRequest, page);
  ControlSession::Options options = Options();
  options.start_timeout_ns = kNsPerSecond / 4;
  auto session = ControlSession::Open(options);
  ASSERT_TRUE(session);
  const auto start = (*session)->DeclareAndWait({});
  ASSERT_FALSE(start);
  EXPECT_EQ(start.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Lines(),
              Contains(AllOf(HasSubstr("waiting for the start"), HasSubstr("server 1, worker 0"))));
}

TEST_F(ControlSessionTest, RemovalFromTheViewIsTheEnd) {
  coordinator_.SetStart(View(1, true), MakeTestMap({"unused"}, 1, kElements));
  auto session = Open();
  ASSERT_TRUE(session);
  const auto start = session->DeclareAndWait({});
  ASSERT_TRUE(start) << start.error();
  EXPECT_EQ(start->first_clock, 7);
  Envelope old;
  *old.mutable_view() =
      View(1, false);  // Told again, as after a reconnect, or an old one: nothing.
  coordinator_.Notify(old);
  Envelope removal;
  *removal.mutable_view() = View(2, false);
  coordinator_.Notify(removal);
  const Status end = WaitForEnd();
  EXPECT_EQ(end.code(), StatusCode::kAborted);
  EXPECT_THAT(end.message(), HasSubstr("lease"));
  EXPECT_EQ(session->Ask(Arrival(), kNsPerSecond, "x").error().code(), StatusCode::kAborted);
}

TEST_F(ControlSessionTest, ShutdownWakesWhoeverAsks) {
  auto session = Open();
  ASSERT_TRUE(session);
  coordinator_.SetAnswer(Envelope::kBarrierArrive, Envelope());  // Never released.
  Envelope shutdown;
  shutdown.mutable_shutdown()->set_reason("server 0 is gone");
  shutdown.mutable_shutdown()->set_failed(true);
  Thread trigger("trigger", [&] {
    coordinator_.WaitFor(
        [](const auto& all) { return FakeCoordinator::Count(all, Envelope::kBarrierArrive) > 0; },
        "the arrival");
    coordinator_.Notify(shutdown);
  });
  const auto answer = session->Ask(Arrival(), 20 * kNsPerSecond, "the others");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kAborted);
  EXPECT_THAT(answer.error().message(), HasSubstr("server 0 is gone"));
}

TEST_F(ControlSessionTest, ReportsAreKeptUntilTheyAreTakenAndTheOldestDropped) {
  auto session = Open();
  ASSERT_TRUE(session);
  coordinator_.Stop();
  control::StepReport report;
  constexpr int64_t kSteps = kMaxStepReports + 100;
  for (int64_t clock = 0; clock < kSteps; ++clock) {
    report.set_clock(clock);
    session->Report(report);
  }
  coordinator_.Start();
  EXPECT_TRUE(session->Leave(true, "").ok());
  std::vector<int64_t> clocks;
  for (const Envelope& message : coordinator_.Received(Envelope::kHeartbeat)) {
    EXPECT_LE(message.heartbeat().steps_size(), kMaxStepReportsPerHeartbeat);
    for (const auto& step : message.heartbeat().steps()) clocks.push_back(step.clock());
  }
  ASSERT_GE(clocks.size(), 1U);
  EXPECT_EQ(clocks.front(), 100);
  EXPECT_EQ(clocks.back(), kSteps - 1);
  EXPECT_EQ(coordinator_.Received(Envelope::kLeave).size(), 1U);
}

TEST_F(ControlSessionTest, TrainingGoesOnWhileTheCoordinatorIsAway) {
  TestShard shard(0);
  const control::ShardMap map = MakeTestMap({shard.address()}, 4, kElements / 4);
  control::View view;
  view.set_version(1);
  control::Member& member = *view.add_members();
  member.set_worker(kRank);
  member.set_incarnation(2);
  shard.Start(map, view);
  coordinator_.SetStart(view, map);
  ClientOptions options;
  options.coordinator = coordinator_.address();
  auto client = Client::Connect(options);
  ASSERT_TRUE(client) << client.error();
  const Status declared = (*client)->Declare({{"w", {kElements}}});
  ASSERT_TRUE(declared.ok()) << declared;
  ASSERT_TRUE((*client)->Initialize().ok());
  coordinator_.Stop();
  std::ranges::fill((*client)->gradients(), 1.0F);
  for (Clock clock = 0; clock < 10; ++clock) {
    ASSERT_TRUE((*client)->BeginStep(clock, {}).ok());
    for (const ChunkIndex chunk : (*client)->chunk_order()) {
      ASSERT_TRUE((*client)->PushPull(chunk).ok());
    }
    const auto stats = (*client)->FinishStep();
    ASSERT_TRUE(stats) << stats.error();
  }
  EXPECT_EQ((*client)->weights()[0], -10.0F);
  coordinator_.Start();
  EXPECT_TRUE((*client)->Leave(true, "").ok());
}

}  // namespace
}  // namespace slackline::worker
