// Barriers, data leases, checkpoints and resuming: the coordinator in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/coordinator/shard_map.h"
#include "tests/server/coordinator/cluster.h"

namespace slackline::server::coordinator {
namespace {

using testing::HasSubstr;

CoordinatorOptions Options(uint32_t servers, uint32_t workers,
                           const std::string& checkpoints = "") {
  CoordinatorOptions options;
  options.run_id = "test";
  options.expected_servers = servers;
  options.expected_workers = workers;
  options.checkpoint_directory = checkpoints;
  return options;
}

const control::Envelope* LastRelease(const Cluster::Peer& peer) {
  for (auto it = peer.inbox.rbegin(); it != peer.inbox.rend(); ++it) {
    if (it->has_barrier_release()) return &*it;
  }
  return nullptr;
}

TEST(Barrier, ReleasesWhenAllHaveArrivedAndMayBeUsedAgain) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(cluster.Arrive(cluster.workers[0], "b").has_value());
    const auto answer = cluster.Arrive(cluster.workers[1], "b");
    ASSERT_TRUE(answer && answer->has_barrier_release());
    ASSERT_NE(LastRelease(cluster.workers[0]), nullptr);
    cluster.workers[0].inbox.clear();
  }
}

TEST(Barrier, IsNotHeldUpByTheDead) {
  Cluster cluster(Options(1, 3));
  cluster.StartAll(1, 3);
  cluster.Arrive(cluster.workers[0], "trained");
  cluster.Arrive(cluster.workers[1], "trained");
  cluster.Kill(cluster.workers[2]);
  EXPECT_EQ(LastRelease(cluster.workers[0]), nullptr);
  EXPECT_THAT(cluster.state->WaitingFor(),
              testing::Contains("barrier 'trained': waiting for worker 2"));
  cluster.Run(6 * kNsPerSecond);
  EXPECT_NE(LastRelease(cluster.workers[0]), nullptr);
  EXPECT_NE(LastRelease(cluster.workers[1]), nullptr);
}

TEST(Barrier, AReleaseThatWasLostWithItsConnectionIsRepeated) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  cluster.Arrive(cluster.workers[0], "b");
  cluster.Arrive(cluster.workers[1], "b");
  cluster.Reconnect(cluster.workers[0]);
  const auto answer = cluster.Arrive(cluster.workers[0], "b");
  ASSERT_TRUE(answer && answer->has_barrier_release());
}

TEST(Barrier, AnArrivalAgainReplacesTheFirst) {
  Cluster cluster(Options(1, 2));
  cluster.StartAll(1, 2);
  cluster.Arrive(cluster.workers[0], "b");
  cluster.Reconnect(cluster.workers[0]);
  EXPECT_FALSE(cluster.Arrive(cluster.workers[0], "b").has_value());
  EXPECT_TRUE(cluster.Arrive(cluster.workers[1], "b")->has_barrier_release());
}

TEST(DataLeases, EverySampleOfAPassGoesToOneHolder) {
  DataLeases leases(1000, 300);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (int i = 0; i < 4; ++i) {
    const auto lease = leases.Take(static_cast<WorkerId>(i % 2), 1);
    ASSERT_TRUE(lease.has_value());
    EXPECT_EQ(lease->ranges(0).pass(), 0u);
    ranges.emplace_back(lease->ranges(0).begin(), lease->ranges(0).end());
  }
  EXPECT_EQ(ranges, (std::vector<std::pair<uint64_t, uint64_t>>{
                        {0, 300}, {300, 600}, {600, 900}, {900, 1000}}));
  const auto next = leases.Take(0, 1);
  EXPECT_EQ(next->ranges(0).pass(), 1u);
  EXPECT_EQ(next->ranges(0).begin(), 0u);
}

TEST(DataLeases, ADeadHoldersUnfinishedRangesGoToOthersFirst) {
  Cluster cluster(Options(1, 2));
  control::JobSpec job = SmallJob();
  job.set_staleness(-1);
  cluster.StartAll(1, 2, job);
  const auto dead = cluster.Lease(cluster.workers[1], 3);
  ASSERT_TRUE(dead && dead->has_data_lease());
  control::Envelope done;
  done.mutable_data_lease_done()->add_lease_ids(dead->data_lease().ranges(1).lease_id());
  EXPECT_TRUE(cluster.Say(cluster.workers[1], done)->has_ack());
  cluster.Kill(cluster.workers[1]);
  EXPECT_EQ(cluster.Lease(cluster.workers[0], 1)->data_lease().ranges(0).begin(), 300u)
      << "while its lease lives nobody else gets its ranges";
  cluster.Run(6 * kNsPerSecond);
  const auto heir = cluster.Lease(cluster.workers[0], 3);
  ASSERT_EQ(heir->data_lease().ranges_size(), 3);
  EXPECT_EQ(heir->data_lease().ranges(0).begin(), 0u);
  EXPECT_EQ(heir->data_lease().ranges(1).begin(), 200u);
  EXPECT_EQ(heir->data_lease().ranges(2).begin(), 400u);
  EXPECT_NE(heir->data_lease().ranges(0).lease_id(), dead->data_lease().ranges(0).lease_id());
}

TEST(DataLeases, ABoundOnWhatOneWorkerHolds) {
  DataLeases leases(uint64_t{1} << 40, 1);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(leases.Take(0, 256).has_value());
  EXPECT_EQ(leases.Take(0, 1).error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(leases.Take(1, 1).has_value());
  EXPECT_EQ(leases.Take(1, 0).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(leases.Take(1, 257).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DataLeases(0, 10).Take(0, 1).error().code(), StatusCode::kFailedPrecondition);
}

// ---- Checkpoints ----

std::optional<control::Envelope> ReportShard(Cluster& cluster, size_t server,
                                             const std::string& error = "") {
  const control::TakeCheckpoint* command = cluster.servers[server].take_checkpoint();
  if (command == nullptr) return std::nullopt;
  control::Envelope message;
  control::CheckpointShardDone& done = *message.mutable_checkpoint_shard_done();
  done.set_checkpoint_id(command->checkpoint_id());
  done.set_shard(static_cast<uint32_t>(server));
  done.set_file("shard-" + std::to_string(server) + "-of-2.safetensors");
  done.set_bytes(1000);
  done.set_xxh3("0123456789abcdef");
  done.set_error(error);
  return cluster.Say(cluster.servers[server], message);
}

// Two shards with a chunk each.
Tensors TwoChunks() {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {512});
  return tensors;
}

struct CheckpointTest : testing::Test {
  void Start(int staleness, int64_t every) {
    job = SmallJob();
    job.set_staleness(staleness);
    job.set_checkpoint_every(every);
    for (const char* name : {"s0", "s1"}) cluster.AddServer(name);
    cluster.Declare(cluster.AddWorker("w0", -1, job), TwoChunks());
    cluster.Run(kNsPerSecond);
    ASSERT_EQ(cluster.state->phase(), JobPhase::kRunning);
    EXPECT_EQ(cluster.servers[0].take_checkpoint(), nullptr) << "there are no weights to cut yet";
    for (Cluster::Peer& server : cluster.servers) server.chunks_initialised = 1;
    cluster.Run(kNsPerSecond);
  }
  void Reach(Clock clock) {
    for (Cluster::Peer& server : cluster.servers) {
      server.highest = {{{0, 1}, clock}};
      server.min_clock = clock;
    }
    cluster.Run(kNsPerSecond);
  }
  Cluster cluster{Options(2, 1, "ckpt")};
  control::JobSpec job;
};

TEST_F(CheckpointTest, BspCutsAtMultiplesAndCommitsWhenAllShardsReported) {
  Start(0, 10);
  const control::TakeCheckpoint* command = cluster.servers[0].take_checkpoint();
  ASSERT_NE(command, nullptr) << "the command goes out ahead of its clock";
  EXPECT_EQ(command->clock(), 9);
  EXPECT_EQ(command->directory(), "ckpt/.tmp-1");
  EXPECT_FALSE(command->final());
  Reach(9);
  EXPECT_TRUE(ReportShard(cluster, 0)->has_ack());
  EXPECT_TRUE(cluster.committed.empty());
  EXPECT_TRUE(ReportShard(cluster, 1)->has_ack());
  ASSERT_EQ(cluster.committed.size(), 1u);
  EXPECT_EQ(cluster.committed[0].target, "ckpt/step-00000010");
  EXPECT_EQ(cluster.committed[0].clock, 9);
  ASSERT_EQ(cluster.committed[0].files.size(), 2u);
  EXPECT_EQ(cluster.committed[0].files[1].name, "shard-1-of-2.safetensors");
  EXPECT_EQ(cluster.servers[0].take_checkpoint()->clock(), 19);
}

TEST_F(CheckpointTest, AFailedShardCostsOneAttempt) {
  Start(0, 10);
  Reach(9);
  ReportShard(cluster, 0);
  ReportShard(cluster, 1, "no space left on the device");
  EXPECT_TRUE(cluster.committed.empty());
  EXPECT_EQ(cluster.discarded, std::vector<std::string>{"ckpt/.tmp-1"});
  EXPECT_TRUE(cluster.Logged("shard 1: no space left on the device"));
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
  // The next one is a new attempt further ahead.
  const control::TakeCheckpoint* command = cluster.servers[0].take_checkpoint();
  EXPECT_EQ(command->checkpoint_id(), 2u);
  EXPECT_GT(command->clock(), 9);
  EXPECT_EQ(command->clock() % 10, 9);
  Reach(command->clock());
  ReportShard(cluster, 0);
  ReportShard(cluster, 1);
  EXPECT_EQ(cluster.committed.size(), 1u);
}

TEST_F(CheckpointTest, AShardThatNeverReportsIsGivenUpInBound) {
  Start(0, 10);
  cluster.Run(200 * kNsPerSecond);
  EXPECT_TRUE(cluster.discarded.empty()) << "its clock has not come yet";
  Reach(9);
  ReportShard(cluster, 0);
  cluster.Run(121 * kNsPerSecond);
  EXPECT_EQ(cluster.discarded.size(), 1u);
  EXPECT_TRUE(cluster.Logged("no report from shard 1 within 120.0 s"));
}

TEST_F(CheckpointTest, AFullDiskAtCommitKeepsTheJob) {
  Start(0, 10);
  cluster.commit_fails = true;
  Reach(9);
  ReportShard(cluster, 0);
  ReportShard(cluster, 1);
  EXPECT_EQ(cluster.discarded.size(), 1u);
  EXPECT_TRUE(cluster.Logged("disk is full"));
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
}

TEST_F(CheckpointTest, AspCutsWhenTheSlowestHasReachedTheClock) {
  Start(-1, 10);
  EXPECT_EQ(cluster.servers[0].take_checkpoint(), nullptr);
  Reach(8);
  EXPECT_EQ(cluster.servers[0].take_checkpoint(), nullptr);
  Reach(12);
  ASSERT_NE(cluster.servers[0].take_checkpoint(), nullptr);
  EXPECT_EQ(cluster.servers[0].take_checkpoint()->clock(), 12);
}

TEST_F(CheckpointTest, TheFinalOneComesAfterTheLastWorker) {
  Start(0, 0);
  EXPECT_EQ(cluster.servers[0].take_checkpoint(), nullptr);
  Reach(99);
  cluster.Leave(cluster.workers[0], true);
  EXPECT_EQ(cluster.state->phase(), JobPhase::kFinishing);
  const control::TakeCheckpoint* command = cluster.servers[0].take_checkpoint();
  ASSERT_NE(command, nullptr);
  EXPECT_TRUE(command->final());
  EXPECT_EQ(command->clock(), 99);
  EXPECT_EQ(cluster.servers[0].shutdown(), nullptr);
  ReportShard(cluster, 0);
  ReportShard(cluster, 1);
  ASSERT_EQ(cluster.committed.size(), 1u);
  EXPECT_EQ(cluster.committed[0].target, "ckpt/step-00000100");
  ASSERT_NE(cluster.servers[0].shutdown(), nullptr);
  EXPECT_FALSE(cluster.servers[0].shutdown()->failed());
}

TEST_F(CheckpointTest, AFinalOneThatFailsFailsTheJob) {
  Start(0, 0);
  Reach(99);
  cluster.Leave(cluster.workers[0], true);
  ReportShard(cluster, 0, "disk is full");
  ASSERT_NE(cluster.servers[0].shutdown(), nullptr);
  EXPECT_TRUE(cluster.servers[0].shutdown()->failed());
  EXPECT_THAT(cluster.servers[0].shutdown()->reason(), HasSubstr("the final checkpoint failed"));
}

TEST_F(CheckpointTest, ALostServerNamesTheCheckpointToGoOnFrom) {
  Start(0, 10);
  Reach(9);
  ReportShard(cluster, 0);
  ReportShard(cluster, 1);
  cluster.Kill(cluster.servers[0]);
  cluster.Run(6 * kNsPerSecond);
  ASSERT_NE(cluster.workers[0].shutdown(), nullptr);
  EXPECT_THAT(cluster.workers[0].shutdown()->reason(),
              HasSubstr("Go on from ckpt/step-00000010 with --resume"));
}

TEST_F(CheckpointTest, HostileReportsAreRefused) {
  Start(0, 10);
  Reach(9);
  control::Envelope message;
  control::CheckpointShardDone& done = *message.mutable_checkpoint_shard_done();
  done.set_checkpoint_id(1);
  done.set_shard(1);
  done.set_xxh3("0123456789abcdef");
  done.set_file("shard-1.safetensors");
  EXPECT_TRUE(cluster.Say(cluster.servers[0], message)->has_error()) << "another server's shard";
  for (const char* name : {"", "../../etc/passwd", ".hidden", "a/b"}) {
    done.set_file(name);
    EXPECT_TRUE(cluster.Say(cluster.servers[1], message)->has_error()) << name;
  }
  done.set_file("shard-1.safetensors");
  done.set_xxh3("xyz");
  EXPECT_TRUE(cluster.Say(cluster.servers[1], message)->has_error());
  EXPECT_TRUE(cluster.discarded.empty()) << "nonsense does not end the attempt";
}

// ---- Resuming ----

CoordinatorOptions ResumeOptions() {
  CoordinatorOptions options = Options(1, 1, "ckpt");
  RestorePoint restore;
  restore.directory = "ckpt/step-00000050";
  restore.clock = 49;
  restore.job = SmallJob();
  restore.tensors = SmallModel();
  restore.chunks = *CutIntoChunks(SmallModel(), 1024);
  options.restore = restore;
  return options;
}

TEST(Resume, ShardsRestoreAndTrainingGoesOnAfterTheCut) {
  Cluster cluster(ResumeOptions());
  control::JobSpec job = SmallJob();
  job.set_steps(200);
  job.set_staleness(2);
  cluster.StartAll(1, 1, job);
  EXPECT_EQ(cluster.servers[0].map()->restore_from(), "ckpt/step-00000050");
  EXPECT_EQ(cluster.servers[0].map()->first_clock(), 50);
  EXPECT_EQ(cluster.workers[0].view()->members(0).first_clock(), 50);
  EXPECT_TRUE(cluster.Logged("--steps was 100, is 200"));
  EXPECT_TRUE(cluster.Logged("--staleness was 0, is 2"));
}

TEST(Resume, ACheckpointThatAServerCannotReadIsNotRecommended) {
  Cluster cluster(ResumeOptions());
  Cluster::Peer& server = cluster.AddServer("s");
  server.applies = false;
  Cluster::Peer& worker = cluster.AddWorker("w");
  cluster.Declare(worker);
  cluster.Run(kNsPerSecond);
  cluster.Leave(server, /*done=*/false, "shard-00000-of-00001.safetensors: damaged");
  ASSERT_NE(worker.shutdown(), nullptr);
  EXPECT_THAT(worker.shutdown()->reason(),
              testing::AllOf(HasSubstr("damaged"), testing::Not(HasSubstr("--resume")),
                             testing::Not(HasSubstr("lost with it"))));
}

TEST(Resume, AnotherModelIsRefused) {
  Cluster cluster(ResumeOptions());
  control::JobSpec job = SmallJob();
  job.set_model("gpt");
  EXPECT_EQ(cluster.AddWorker("a", -1, job).error()->message(),
            "--model: the job has gpt, the checkpoint has mlp");
  job = SmallJob();
  job.set_model_config_json(R"({"width":8})");
  EXPECT_EQ(cluster.AddWorker("b", -1, job).error()->message(),
            "the model's configuration, width: the job has 8, the checkpoint has 4");
  job = SmallJob();
  job.set_steps(50);
  EXPECT_THAT(cluster.AddWorker("c", -1, job).error()->message(),
              HasSubstr("has 50 steps already"));
  Cluster::Peer& worker = cluster.AddWorker("d");
  Tensors other = SmallModel();
  other.RemoveLast();
  EXPECT_EQ(cluster.Declare(worker, other)->error().message(),
            "worker 0 declares 1 tensor, the checkpoint has 2");
}

}  // namespace
}  // namespace slackline::server::coordinator
