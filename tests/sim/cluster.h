// A whole cluster in one simulation: the real coordinator state machine, real shards and real
// client cores over a simulated network, with faults, and everything that workers read checked.
//
// A seed is a run: it decides every delay, fault, kill and order. Run() returns what went wrong.
// Threading: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/control_plane.h"
#include "tests/sim/ledger.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"
#include "transport/sim/sim_network.h"

namespace slackline::sim {

struct ClusterOptions {
  int32_t staleness = 0;  // 0 BSP, s > 0 SSP, -1 ASP.
  bool deterministic = false;
  uint32_t quorum = 0;  // BSP: pushes that close a round after the grace.
  int64_t grace_ms = 0;
  uint32_t workers = 3;
  uint32_t servers = 2;
  uint32_t shards_per_server = 1;
  uint32_t chunks = 4;
  Clock clocks = 20;
  uint32_t slots = 20;  // See ledger.h.
  std::string push_codec = "fp32";
  std::string pull_codec = "fp32";
  TimeNs lease_ns = 500 * kNsPerMs;
  TimeNs think_max_ns = 5 * kNsPerMs;
  double empty_chance = 0;
  bool report_steps = true;
  bool reduce = false;  // BSP: every push comes after a round of kReduce.

  transport::SimFaults faults = {};
  uint32_t kills = 0;         // Workers that die, at random times.
  double replace_chance = 1;  // That another process takes a dead one's place.
  uint32_t stalls = 0;        // Workers that stand still for longer than their lease.
  uint32_t link_cuts = 0;     // Of whole pairs of processes, besides those of `faults`.
  uint32_t control_cuts = 0;  // Of connections to the coordinator.
  uint32_t partitions = 0;    // Of a worker and a shard, for less than a second.
  TimeNs fault_window_ns = 400 * kNsPerMs;  // After the start of training; all of them fall in it.
};

// Everything by chance, out of one seed.
ClusterOptions RandomOptions(uint64_t seed, int32_t staleness);
// The same under BSP with a quorum.
ClusterOptions RandomQuorumOptions(uint64_t seed);

struct ClusterResult {
  std::vector<std::string> errors;  // Empty: every promise was kept.
  uint64_t trace_hash = 0;
  uint64_t weights_hash = 0;
  uint64_t events = 0;
  uint64_t acknowledged = 0, refused = 0, unanswered = 0;
  uint64_t aggregates = 0;  // Of kReduce, that someone read.
  uint64_t resends = 0, duplicates = 0, links_lost = 0, busy = 0;
  uint32_t lives = 0;  // Of workers, that came to push.
  TimeNs longest_wait_ns = 0;
  Clock largest_staleness = 0;
  TimeNs duration_ns = 0;
};

class Cluster {
 public:
  Cluster(uint64_t seed, const ClusterOptions& options);
  ~Cluster();
  ClusterResult Run();

 private:
  // Past any lease, time-out and backoff of a run: who is not done by then never will be.
  static constexpr TimeNs kPatienceNs = 300 * kNsPerSecond;

  control::JobSpec Job() const;
  void StartWorker(int32_t rank);
  void StartFaults();
  void Kill(size_t worker);
  void Reap();
  void Retire(const SimWorker& worker);
  bool LastOne() const;
  std::vector<SimWorker::Membership> Members() const;
  void CheckEnd();
  void Wrong(std::string line) { result_.errors.push_back(std::move(line)); }

  const ClusterOptions options_;
  Rng rng_;
  transport::SimNetwork network_;
  Ledger ledger_;
  ControlPlane control_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;  // Null: it died, or left.
  uint32_t processes_ = 0;
  bool faults_started_ = false;
  bool all_replaced_ = true;  // Nobody was lost for good.
  ClusterResult result_;
};

}  // namespace slackline::sim
