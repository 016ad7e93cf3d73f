// Joining, leases, views, replacement: the coordinator in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/coordinator/cluster.h"

namespace slackline::server::coordinator {
namespace {

using testing::HasSubstr;

CoordinatorOptions Options(uint32_t servers, uint32_t workers) {
  CoordinatorOptions options;
  options.run_id = "test";
  options.expected_servers = servers;
  options.expected_workers = workers;
  return options;
}

control::JobSpec SspJob(int staleness) {
  control::JobSpec job = SmallJob();
  job.set_staleness(staleness);
  return job;
}

const control::Member* FindMember(const control::View& view, WorkerId worker) {
  for (const control::Member& member : view.members()) {
    if (member.worker() == worker) return &member;
  }
  return nullptr;
}

TEST(StartUp, WorkersHearOfTheMapOnlyAfterEveryShardAppliedIt) {
  Cluster cluster(Options(2, 2));
  cluster.AddServer("s0", 2);
  cluster.AddServer("s1").applies = false;
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  cluster.Declare(cluster.workers[0]);
  EXPECT_EQ(cluster.servers[0].map(), nullptr) << "worker 1 has not declared yet";
  cluster.Declare(cluster.workers[1]);
  ASSERT_NE(cluster.servers[0].map(), nullptr);
  EXPECT_EQ(cluster.servers[0].map()->epoch(), 1u);
  EXPECT_EQ(cluster.servers[0].map()->shard_addresses_size(), 3);
  EXPECT_EQ(cluster.servers[1].registered->first_shard(), 2u);
  cluster.Run(2 * kNsPerSecond);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kPlacing);
  EXPECT_EQ(cluster.workers[0].map(), nullptr);
  EXPECT_EQ(cluster.state->WaitingFor(),
            std::vector<std::string>{"shard 2 to apply shard map 1 and view 1"});

  cluster.servers[1].epoch = 1;
  cluster.servers[1].view_version = 1;
  cluster.Heartbeat(cluster.servers[1]);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
  for (const Cluster::Peer& worker : cluster.workers) {
    ASSERT_NE(worker.map(), nullptr);
    ASSERT_NE(worker.view(), nullptr);
    EXPECT_EQ(worker.view()->members_size(), 2);
  }
}

TEST(StartUp, SaysWhatIsMissingWithinFiveSecondsAndGivesUp) {
  CoordinatorOptions options = Options(2, 2);
  options.start_timeout_ns = 20 * kNsPerSecond;
  Cluster cluster(options);
  cluster.AddServer("s0");
  cluster.AddWorker("w1", 1);
  cluster.Run(5 * kNsPerSecond);
  EXPECT_TRUE(
      cluster.Logged("1 of 2 servers to register; worker 0 of 2 workers to register; "
                     "worker 1 to declare the model"));
  cluster.Run(14 * kNsPerSecond);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kGathering);
  cluster.Run(2 * kNsPerSecond);
  ASSERT_NE(cluster.workers[0].shutdown(), nullptr);
  EXPECT_TRUE(cluster.workers[0].shutdown()->failed());
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(), HasSubstr("1 of 2 servers to register"));
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(), HasSubstr("--start_timeout_s"));
  cluster.Run(6 * kNsPerSecond);
  ASSERT_TRUE(cluster.exit.has_value());
  EXPECT_EQ(cluster.exit->code, 1);
}

TEST(StartUp, AJobThatDiffersIsRefusedWithFlagAndBothValues) {
  Cluster cluster(Options(1, 2));
  cluster.AddWorker("w0");
  control::JobSpec other = SmallJob();
  other.mutable_optimizer()->set_name("adam");
  Cluster::Peer& refused = cluster.AddWorker("w1", -1, other);
  ASSERT_NE(refused.error(), nullptr);
  EXPECT_EQ(refused.error()->message(), "--optimizer: worker 1 has adam, the job has sgd");
  other = SmallJob();
  other.set_model_config_json(R"({"width":8})");
  EXPECT_EQ(cluster.AddWorker("w2", 1, other).error()->message(),
            "the model's configuration, width: worker 1 has 8, the job has 4");
  EXPECT_EQ(cluster.AddWorker("w3").registered->id(), 1u) << "those refused took no rank";
}

TEST(StartUp, AModelThatDiffersIsRefusedWithTheTensor) {
  Cluster cluster(Options(1, 2));
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  EXPECT_TRUE(cluster.Declare(cluster.workers[0])->has_ack());
  Tensors other = SmallModel();
  other[1].set_shape(0, 5);
  const auto answer = cluster.Declare(cluster.workers[1], other);
  ASSERT_TRUE(answer && answer->has_error());
  EXPECT_EQ(answer->error().message(), "tensor 1: worker 1 declares 'b' [5], the job has 'b' [4]");
}

TEST(StartUp, WhoDefinedTheJobMayGoAndTheNextDefinesAnother) {
  Cluster cluster(Options(1, 1));
  cluster.Leave(cluster.AddWorker("w0"), false);
  control::JobSpec other = SmallJob();
  other.set_steps(7);
  EXPECT_NE(cluster.AddWorker("w1", -1, other).registered, std::nullopt);
}

TEST(StartUp, AServerThatDiesBeforeTheMapIsReplaced) {
  Cluster cluster(Options(1, 1));
  cluster.Kill(cluster.AddServer("s0", 2));
  cluster.Run(6 * kNsPerSecond);
  EXPECT_NE(cluster.AddServer("bad", 3).error(), nullptr) << "its place has two shards";
  Cluster::Peer& replacement = cluster.AddServer("s1", 2);
  ASSERT_TRUE(replacement.registered.has_value());
  EXPECT_EQ(replacement.registered->first_shard(), 0u);
}

TEST(Leases, AReconnectKeepsRankLifeAndLease) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  Cluster::Peer& worker = cluster.workers[1];
  worker.inbox.clear();
  cluster.Reconnect(worker);
  EXPECT_EQ(worker.registered->id(), 1u);
  EXPECT_EQ(worker.registered->incarnation(), 1u);
  EXPECT_NE(worker.view(), nullptr) << "what a reconnect may have missed is repeated";
  EXPECT_NE(worker.map(), nullptr);
  EXPECT_EQ(cluster.state->view_version(), 1u);
  cluster.Run(20 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 1u) << "its heartbeats renew the lease";

  Cluster::Peer& server = cluster.servers[0];
  server.inbox.clear();
  cluster.Reconnect(server);
  EXPECT_NE(server.view(), nullptr);
  EXPECT_NE(server.map(), nullptr);
}

TEST(Leases, AnotherProcessDoesNotGetARankWhoseLeaseLives) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  Cluster::Peer& rival = cluster.AddWorker("rival", 1);
  ASSERT_NE(rival.error(), nullptr);
  EXPECT_EQ(rival.error()->code(), static_cast<uint32_t>(StatusCode::kAlreadyExists));
  EXPECT_THAT(rival.error()->message(), HasSubstr("worker rank 1 is held by host-w1, pid 2"));

  cluster.Kill(cluster.workers[1]);
  Cluster::Peer& early = cluster.AddWorker("early");
  ASSERT_NE(early.error(), nullptr);
  EXPECT_EQ(early.error()->code(), static_cast<uint32_t>(StatusCode::kUnavailable))
      << "worth trying again once the lease has run out";
  cluster.Run(6 * kNsPerSecond);
  EXPECT_EQ(cluster.AddWorker("late").registered->id(), 1u);
}

TEST(Leases, ADeadWorkerLeavesTheViewWithinItsLease) {
  Cluster cluster(Options(1, 3));
  cluster.StartAll(1, 3);
  cluster.Kill(cluster.workers[1]);
  cluster.Run(4 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 1u) << "a broken connection is not a death";
  cluster.Run(2 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 2u);
  const control::View* view = cluster.servers[0].view();
  ASSERT_EQ(view->members_size(), 2);
  EXPECT_EQ(FindMember(*view, 1), nullptr);
  EXPECT_EQ(cluster.workers[0].view()->version(), 2u) << "workers learn of it, too";
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);

  // The same process, back after its lease: it must start over.
  cluster.Reconnect(cluster.workers[1]);
  ASSERT_NE(cluster.workers[1].error(), nullptr);
  EXPECT_EQ(cluster.workers[1].error()->code(), static_cast<uint32_t>(StatusCode::kAborted));
}

TEST(Leases, AHungWorkerThatIsStillConnectedIsRemovedAndTold) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  cluster.workers[1].alive = false;  // No heartbeats, the connection stays.
  cluster.Run(6 * kNsPerSecond);
  ASSERT_NE(cluster.workers[1].view(), nullptr);
  EXPECT_EQ(FindMember(*cluster.workers[1].view(), 1), nullptr);
  cluster.Heartbeat(cluster.workers[1]);
  ASSERT_NE(cluster.workers[1].error(), nullptr);
  EXPECT_THAT(cluster.workers[1].error()->message(), HasSubstr("not registered"));
}

TEST(Leases, ACoordinatorThatStoodStillBlamesNobody) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  cluster.Tick(60 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 1u);
  EXPECT_TRUE(cluster.Logged("stood still"));
  cluster.workers[1].alive = false;
  cluster.Run(6 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 2u) << "after that leases run as before";
}

TEST(Leases, ALostServerEndsTheJobAndNamesItsShards) {
  Cluster cluster(Options(2, 1));
  cluster.StartAll(2, 1);
  cluster.Kill(cluster.servers[1]);
  cluster.Run(6 * kNsPerSecond);
  ASSERT_NE(cluster.workers[0].shutdown(), nullptr);
  EXPECT_TRUE(cluster.workers[0].shutdown()->failed());
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(), HasSubstr("server 1 (host-s1, pid 1)"));
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(), HasSubstr("shard 1 is lost"));
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(), HasSubstr("No checkpoint was taken"));
  cluster.Run(6 * kNsPerSecond);
  ASSERT_TRUE(cluster.exit.has_value());
  EXPECT_EQ(cluster.exit->code, 1);
}

TEST(Replacement, StartsAboveItsPredecessorOnceShardsDroppedIt) {
  Cluster cluster(Options(2, 2));
  cluster.StartAll(2, 2, SspJob(3));
  cluster.servers[0].highest = {{{0, 1}, 20}, {{1, 1}, 19}};
  cluster.servers[1].highest = {{{0, 1}, 21}, {{1, 1}, 18}};
  cluster.Run(kNsPerSecond);
  cluster.servers[1].applies = false;
  cluster.Kill(cluster.workers[1]);
  cluster.Run(6 * kNsPerSecond);
  Cluster::Peer& replacement = cluster.AddWorker("w1b", 1, SspJob(3));
  ASSERT_TRUE(replacement.registered.has_value());
  EXPECT_EQ(replacement.registered->id(), 1u);
  EXPECT_EQ(replacement.registered->incarnation(), 2u);
  cluster.Declare(replacement);
  cluster.Run(2 * kNsPerSecond);
  EXPECT_EQ(cluster.state->view_version(), 2u)
      << "shard 1 has not dropped the first life yet: its updates may still rise";

  // They did rise before the view came through, beyond everyone else.
  cluster.servers[1].highest[{1, 1}] = 30;
  cluster.servers[1].applies = true;
  cluster.servers[1].view_version = 2;
  cluster.Run(2 * kNsPerSecond);
  ASSERT_EQ(cluster.state->view_version(), 3u);
  const control::Member* member = FindMember(*cluster.servers[0].view(), 1);
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->incarnation(), 2u);
  EXPECT_EQ(member->first_clock(), 31);
  ASSERT_NE(replacement.view(), nullptr);
  EXPECT_NE(replacement.map(), nullptr);
}

TEST(Replacement, AnSspJoinerStartsAtTheSlowestLiveClock) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2, SspJob(3));
  cluster.servers[0].highest = {{{0, 1}, 20}, {{1, 1}, 17}};
  cluster.Run(kNsPerSecond);
  Cluster::Peer& joiner = cluster.AddWorker("new", -1, SspJob(3));
  EXPECT_EQ(joiner.registered->id(), 2u);
  cluster.Declare(joiner);
  cluster.Run(kNsPerSecond);
  const control::Member* member = FindMember(*cluster.servers[0].view(), 2);
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->first_clock(), 17);
}

TEST(Replacement, ABspJoinerStartsAboveEveryRoundThatMayBeClosed) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  cluster.servers[0].highest = {{{0, 1}, 20}, {{1, 1}, 19}};
  cluster.Run(kNsPerSecond);
  Cluster::Peer& joiner = cluster.AddWorker("new");
  cluster.Declare(joiner);
  const control::Member* member = FindMember(*cluster.servers[0].view(), 2);
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->first_clock(), 22) << "two above the highest when nothing is known of the pace";
}

TEST(Replacement, ABspJoinersMarginGrowsWithThePace) {
  Cluster cluster(Options(1, 1));
  control::JobSpec job = SmallJob();
  job.set_steps(100000);
  cluster.StartAll(1, 1, job);
  for (int second = 1; second <= 5; ++second) {  // 100 steps a second.
    cluster.servers[0].min_clock = 100 * second;
    cluster.servers[0].highest = {{{0, 1}, 100 * second}};
    cluster.Run(kNsPerSecond);
  }
  Cluster::Peer& joiner = cluster.AddWorker("new", -1, job);
  cluster.Declare(joiner);
  const control::Member* member = FindMember(*cluster.servers[0].view(), 1);
  ASSERT_NE(member, nullptr);
  EXPECT_GE(member->first_clock(), 550) << "half a second of rounds may have closed since";
  EXPECT_LE(member->first_clock(), 700);
}

TEST(Replacement, WithoutAnyWorkerTheJobWaitsABoundedTime) {
  Cluster cluster(Options(1, 1));
  cluster.StartAll(1, 1);
  cluster.servers[0].highest = {{{0, 1}, 5}};
  cluster.Run(kNsPerSecond);
  cluster.Kill(cluster.workers[0]);
  cluster.Run(10 * kNsPerSecond);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
  Cluster::Peer& second = cluster.AddWorker("w0b");
  cluster.Declare(second);
  cluster.Run(40 * kNsPerSecond);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning) << "a replacement stops the waiting";
  ASSERT_NE(second.view(), nullptr);
  EXPECT_GE(FindMember(*second.view(), 0)->first_clock(), 6);
  cluster.Kill(second);
  cluster.Run(45 * kNsPerSecond);
  ASSERT_TRUE(cluster.exit.has_value());
  EXPECT_EQ(cluster.exit->code, 1);
  EXPECT_THAT(cluster.exit->reason, HasSubstr("no worker is left"));
}

TEST(End, AllDoneEndsWithSummaryAndCleanExit) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  for (Cluster::Peer& worker : cluster.workers) {
    for (int clock = 0; clock < 100; ++clock) {
      control::StepReport& step = worker.steps.emplace_back();
      step.set_clock(clock);
      step.set_loss(clock < 10 ? 5.0 : clock < 90 ? 3.0 : 2.0);
      step.set_tokens(10);
      step.set_bytes_pushed(100);
      step.set_bytes_pulled(200);
      control::StalenessCount& staleness = *step.add_staleness();
      staleness.set_staleness(clock < 98 ? 1 : 4);
      staleness.set_chunks(1);
    }
  }
  cluster.Run(2 * kNsPerSecond);
  EXPECT_EQ(cluster.metrics.size(), 200u);
  control::Envelope report;
  report.mutable_final_report()->set_validation_loss(2.25);
  report.mutable_final_report()->set_has_validation_loss(true);
  report.mutable_final_report()->set_sample("once upon");
  EXPECT_TRUE(cluster.Say(cluster.workers[0], report)->has_ack());
  cluster.Leave(cluster.workers[0], true);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
  cluster.Leave(cluster.workers[1], true);
  ASSERT_NE(cluster.servers[0].shutdown(), nullptr);
  EXPECT_FALSE(cluster.servers[0].shutdown()->failed());
  cluster.Kill(cluster.servers[0]);
  ASSERT_TRUE(cluster.exit.has_value());
  EXPECT_EQ(cluster.exit->code, 0);

  const auto summary = nlohmann::json::parse(cluster.files["summary.json"]);
  EXPECT_EQ(summary["steps"], 100);
  EXPECT_EQ(summary["train_loss_first"], 5.0);
  EXPECT_EQ(summary["train_loss_last"], 2.0);
  EXPECT_EQ(summary["validation_loss"], 2.25);
  EXPECT_EQ(summary["bytes_pushed"], 20000);
  EXPECT_EQ(summary["bytes_pulled"], 40000);
  EXPECT_EQ(summary["staleness_p50"], 1);
  EXPECT_EQ(summary["staleness_p99"], 4);
  EXPECT_EQ(summary["staleness_max"], 4);
  EXPECT_EQ(summary["mode"], "bsp");
  EXPECT_GT(summary["tokens_per_s"], 0);
  EXPECT_GT(summary["seconds"], 0);
  EXPECT_EQ(cluster.files["sample.txt"], "once upon");
}

TEST(End, AnInterruptShutsTheFleetDown) {
  Cluster cluster(Options(1, 1));
  cluster.StartAll(1, 1);
  cluster.Carry(cluster.state->OnInterrupt("interrupted", cluster.now));
  ASSERT_NE(cluster.workers[0].shutdown(), nullptr);
  EXPECT_TRUE(cluster.workers[0].shutdown()->failed());
  ASSERT_NE(cluster.servers[0].shutdown(), nullptr);
  EXPECT_FALSE(cluster.exit.has_value()) << "the others get time to go";
  cluster.Run(6 * kNsPerSecond);
  ASSERT_TRUE(cluster.exit.has_value());
  EXPECT_EQ(cluster.exit->code, 1);
  EXPECT_EQ(cluster.exit->reason, "interrupted");
}

}  // namespace
}  // namespace slackline::server::coordinator
