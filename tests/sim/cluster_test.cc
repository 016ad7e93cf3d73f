// Whole clusters under faults, seed after seed. What must hold (the design's promises): every
// acknowledged push is in the weights exactly once and every other at most once; whoever reads sees
// its own updates and, under a bound, everyone's up to it; nobody waits for the dead longer than
// their lease; a seed is a run. SLACKLINE_SEED=n replays one, SLACKLINE_SEEDS=n runs more.
#include "tests/sim/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <string>

#include "tests/sim/seeds.h"

namespace slackline::sim {
namespace {

constexpr uint64_t kSeeds = 250;  // For each mode.

std::string Text(const ClusterResult& result) {
  std::string text;
  for (const std::string& error : result.errors) text += error + "\n";
  return text;
}

// What a row of seeds went through: a test of faults that did not happen proves nothing.
struct Coverage {
  uint64_t events = 0, acknowledged = 0, refused = 0, unanswered = 0;
  uint64_t resends = 0, duplicates = 0, links_lost = 0, lives = 0;
  void Add(const ClusterResult& result) {
    events += result.events;
    acknowledged += result.acknowledged;
    refused += result.refused;
    unanswered += result.unanswered;
    resends += result.resends;
    duplicates += result.duplicates;
    links_lost += result.links_lost;
    lives += result.lives;
  }
  void Print() const {
    std::cout << events << " events, " << lives << " lives, " << acknowledged
              << " pushes acknowledged, " << refused << " refused, " << unanswered
              << " never answered, " << resends << " resends, " << duplicates << " duplicates, "
              << links_lost << " links lost\n";
  }
};

class ClusterTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(ClusterTest, KeepsItsPromisesUnderFaults) {
  Coverage coverage;
  const auto seeds = SeedsToRun(kSeeds);
  for (const uint64_t seed : seeds) {
    const ClusterResult result = Cluster(seed, RandomOptions(seed, GetParam())).Run();
    coverage.Add(result);
    ASSERT_TRUE(result.errors.empty())
        << "SLACKLINE_SEED=" << seed << " --gtest_filter=*KeepsItsPromisesUnderFaults*/"
        << ::testing::UnitTest::GetInstance()->current_test_info()->name() << "\n"
        << Text(result);
  }
  coverage.Print();
  if (seeds.size() < kSeeds) return;
  EXPECT_GT(coverage.acknowledged, 10'000u);
  EXPECT_GT(coverage.unanswered, 10u);
  EXPECT_GT(coverage.resends, 100u);
  EXPECT_GT(coverage.duplicates, 50u);
}

TEST_P(ClusterTest, ASeedIsARun) {
  std::set<uint64_t> traces;
  const auto seeds = SeedsToRun(10);
  for (const uint64_t seed : seeds) {
    const ClusterResult first = Cluster(seed, RandomOptions(seed, GetParam())).Run();
    const ClusterResult second = Cluster(seed, RandomOptions(seed, GetParam())).Run();
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "SLACKLINE_SEED=" << seed;
    EXPECT_EQ(first.weights_hash, second.weights_hash) << "SLACKLINE_SEED=" << seed;
    EXPECT_EQ(first.events, second.events) << "SLACKLINE_SEED=" << seed;
    traces.insert(first.trace_hash);
  }
  EXPECT_EQ(traces.size(), seeds.size());
}

// Workers die and nobody comes for them: the others wait for the lease, and no longer.
TEST_P(ClusterTest, AKilledWorkerDelaysNobodyBeyondItsLease) {
  TimeNs longest_ns = 0;
  for (const uint64_t seed : SeedsToRun(30)) {
    ClusterOptions options{.staleness = GetParam(), .workers = 4, .clocks = 30, .slots = 30};
    options.kills = 2;
    options.replace_chance = 0;
    options.fault_window_ns = 60 * kNsPerMs;
    const ClusterResult result = Cluster(seed, options).Run();
    ASSERT_TRUE(result.errors.empty()) << "SLACKLINE_SEED=" << seed << "\n" << Text(result);
    // The lease runs from the last heartbeat; the coordinator looks every 20 ms, then the view
    // travels. A fifth of a second covers that, a heartbeat and a step.
    EXPECT_LE(result.longest_wait_ns, options.lease_ns + kNsPerSecond / 5)
        << "SLACKLINE_SEED=" << seed;
    longest_ns = std::max(longest_ns, result.longest_wait_ns);
  }
  const TimeNs lease_ns = ClusterOptions().lease_ns;
  if (GetParam() < 0) {
    EXPECT_LT(longest_ns, lease_ns / 10) << "under ASP nobody waits for anyone";
  } else {
    EXPECT_GT(longest_ns, lease_ns / 2) << "no kill was ever waited for: the test tests nothing";
  }
}

// Workers die and come back, again and again, over a network that cuts and refuses.
TEST_P(ClusterTest, SurvivesAStormOfFaults) {
  Coverage coverage;
  const auto seeds = SeedsToRun(20);
  for (const uint64_t seed : seeds) {
    ClusterOptions options = RandomOptions(seed, GetParam());
    options.clocks = 40;
    options.slots = 40;
    options.workers = 4;
    options.faults = {.delay_max_ns = 2 * kNsPerMs,
                      .cut_chance = 0.02,
                      .refuse_chance = 0.3,
                      .duplicate_chance = 0.3};
    options.kills = 8;
    options.stalls = 2;
    options.link_cuts = 20;
    options.control_cuts = 6;
    options.partitions = 4;
    options.fault_window_ns = 3 * kNsPerSecond;
    options.think_max_ns = 60 * kNsPerMs;
    const ClusterResult result = Cluster(seed, options).Run();
    ASSERT_TRUE(result.errors.empty()) << "SLACKLINE_SEED=" << seed << "\n" << Text(result);
    coverage.Add(result);
  }
  coverage.Print();
  EXPECT_GT(coverage.links_lost, 10 * seeds.size());
  EXPECT_GT(coverage.lives, 6 * seeds.size());
}

TEST_P(ClusterTest, StalenessIsWithinItsBoundAndReachesIt) {
  Clock largest = 0;
  for (const uint64_t seed : SeedsToRun(20)) {
    ClusterOptions options{.staleness = GetParam(), .workers = 3, .clocks = 40, .slots = 40};
    const ClusterResult result = Cluster(seed, options).Run();
    ASSERT_TRUE(result.errors.empty()) << "SLACKLINE_SEED=" << seed << "\n" << Text(result);
    largest = std::max(largest, result.largest_staleness);
  }
  if (GetParam() >= 0) {
    EXPECT_EQ(largest, GetParam());
  } else {
    EXPECT_GT(largest, 3);
  }
}

// Workers die inside rounds of kReduce: the others wait for the lease, and no longer, and whoever
// contributed counts once.
TEST(ReduceTest, ADeadWorkerDelaysNoRoundBeyondItsLease) {
  TimeNs longest_ns = 0;
  uint64_t aggregates = 0;
  for (const uint64_t seed : SeedsToRun(30)) {
    ClusterOptions options{.staleness = 0, .workers = 4, .clocks = 30, .slots = 30};
    options.reduce = true;
    options.kills = 2;
    options.replace_chance = seed % 2 == 0 ? 1 : 0;
    options.fault_window_ns = 60 * kNsPerMs;
    options.faults = {.cut_chance = 0.004, .refuse_chance = 0.1};
    const ClusterResult result = Cluster(seed, options).Run();
    ASSERT_TRUE(result.errors.empty()) << "SLACKLINE_SEED=" << seed << "\n" << Text(result);
    // Cut links come on top of the lease: backoff and a second try.
    EXPECT_LE(result.longest_wait_ns, 2 * options.lease_ns + kNsPerSecond)
        << "SLACKLINE_SEED=" << seed;
    longest_ns = std::max(longest_ns, result.longest_wait_ns);
    aggregates += result.aggregates;
  }
  EXPECT_GT(longest_ns, ClusterOptions().lease_ns / 2) << "no kill was ever waited for";
  EXPECT_GT(aggregates, 100u);
}

// ---- BSP with a quorum ----

TEST(QuorumClusterTest, KeepsItsPromisesUnderFaults) {
  Coverage coverage;
  Clock largest_staleness = 0;
  const auto seeds = SeedsToRun(kSeeds);
  for (const uint64_t seed : seeds) {
    const ClusterResult result = Cluster(seed, RandomQuorumOptions(seed)).Run();
    coverage.Add(result);
    largest_staleness = std::max(largest_staleness, result.largest_staleness);
    ASSERT_TRUE(result.errors.empty())
        << "SLACKLINE_SEED=" << seed << " --gtest_filter=QuorumClusterTest.*\n"
        << Text(result);
  }
  coverage.Print();
  if (seeds.size() < kSeeds) return;
  EXPECT_GT(coverage.acknowledged, 10'000u);
  EXPECT_EQ(coverage.refused, 0u) << "a latecomer joins the next round";
  EXPECT_GT(largest_staleness, 3) << "nobody was ever late";
}

TEST(QuorumClusterTest, NobodyWaitsForThoseBeyondTheQuorum) {
  for (const uint64_t seed : SeedsToRun(30)) {
    ClusterOptions options{.quorum = 2, .grace_ms = 5, .workers = 4, .clocks = 60, .slots = 60};
    // Training outlasts the lease: at its very end, a slower one of the two that live would wait
    // for the dead, since it is no quorum alone.
    options.think_max_ns = 40 * kNsPerMs;
    options.kills = 2;
    options.replace_chance = 0;
    options.fault_window_ns = 60 * kNsPerMs;
    const ClusterResult result = Cluster(seed, options).Run();
    ASSERT_TRUE(result.errors.empty()) << "SLACKLINE_SEED=" << seed << "\n" << Text(result);
    // Two of four die in the middle; BSP waits for their lease then, a quorum of two does not.
    EXPECT_LT(result.longest_wait_ns, options.lease_ns / 4) << "SLACKLINE_SEED=" << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ClusterTest, ::testing::Values(0, 1, 3, -1), [](const auto& info) {
  return info.param == 0  ? std::string("Bsp")
         : info.param < 0 ? std::string("Asp")
                          : "Ssp" + std::to_string(info.param);
});

}  // namespace
}  // namespace slackline::sim
