#include "tests/sim/cluster.h"

#include <algorithm>
#include <utility>

#include "common/hash.h"

namespace slackline::sim {
namespace {

server::coordinator::CoordinatorOptions CoordinatorFor(const ClusterOptions& options) {
  server::coordinator::CoordinatorOptions result;
  result.run_id = "simulation";
  result.expected_servers = options.servers;
  result.expected_workers = options.workers;
  result.lease_ns = options.lease_ns;
  return result;
}

LedgerOptions LedgerFor(const ClusterOptions& options) {
  const bool exact = options.pull_codec == "fp32";
  return {.bsp = options.staleness == 0,
          .quorum = options.quorum > 0,
          .workers = options.workers,
          .chunks = options.chunks,
          .clocks = options.clocks,
          .slots = options.slots,
          // BSP: 1 / n is rounded, to FP32 or to what a codec keeps (8 bits of bf16).
          .tolerance = options.staleness != 0 ? 0
                       : exact                ? 1e-5
                                              : 1e-2};
}

}  // namespace

ClusterOptions RandomOptions(uint64_t seed, int32_t staleness) {
  Rng rng(Mix64(seed ^ 0xC1A57E12));
  const auto below = [&](uint64_t bound) { return static_cast<uint32_t>(rng.Below(bound)); };
  static constexpr const char* kCodecs[] = {"fp32", "fp16", "bf16"};
  ClusterOptions options;
  options.staleness = staleness;
  options.deterministic = staleness == 0 && below(2) == 0;
  options.workers = 1 + below(4);
  options.servers = 1 + below(2);
  options.shards_per_server = 1 + below(2);
  // One for each shard at least: fewer would be cut smaller, and the ledger needs its elements.
  options.chunks = options.servers * options.shards_per_server + below(4);
  options.clocks = 8 + below(25);
  options.slots = staleness == 0 || below(2) == 0 ? static_cast<uint32_t>(options.clocks) : 7;
  options.push_codec = kCodecs[below(3)];
  options.pull_codec = kCodecs[below(3)];
  // Exact for what the ledger pushes, one value a chunk.
  if (seed % 4 == 3) options.push_codec = "topk";
  options.think_max_ns = static_cast<TimeNs>(1 + below(20)) * kNsPerMs;
  options.empty_chance = below(3) == 0 ? 0.2 : 0;
  options.report_steps = below(2) == 0;
  if (below(5) > 0) {
    options.faults.delay_max_ns = static_cast<TimeNs>(1 + below(30)) * 100'000;
    options.faults.cut_chance = below(2) == 0 ? 0 : 0.004;
    options.faults.refuse_chance = below(2) == 0 ? 0 : 0.2;
    options.faults.duplicate_chance = below(2) == 0 ? 0 : 0.2;
  }
  options.kills = below(3);
  options.replace_chance = below(2) == 0 ? 1 : 0.5;
  options.stalls = below(4) == 0 ? 1 : 0;
  options.link_cuts = below(4);
  options.control_cuts = below(3);
  options.partitions = below(2);
  options.reduce = staleness == 0 && below(2) == 0;
  return options;
}

ClusterOptions RandomQuorumOptions(uint64_t seed) {
  ClusterOptions options = RandomOptions(seed, 0);
  Rng rng(Mix64(seed ^ 0x900A));
  options.deterministic = false;
  options.reduce = false;  // Its rounds are of one clock.
  options.quorum = 1 + static_cast<uint32_t>(rng.Below(options.workers));
  options.grace_ms = static_cast<int64_t>(rng.Below(10));
  return options;
}

Cluster::Cluster(uint64_t seed, const ClusterOptions& options)
    : options_(options),
      rng_(Mix64(seed ^ 0x5EED)),
      network_(rng_.Next(), options.faults),
      ledger_(LedgerFor(options)),
      control_(network_, CoordinatorFor(options), rng_.Next()) {
  for (uint32_t i = 0; i < options_.servers; ++i) {
    servers_.push_back(std::make_unique<SimServer>(network_, control_, "server" + std::to_string(i),
                                                   options_.shards_per_server, options_.workers,
                                                   rng_.Next()));
  }
  for (uint32_t i = 0; i < options_.workers; ++i) StartWorker(-1);
}

Cluster::~Cluster() = default;

control::JobSpec Cluster::Job() const {
  control::JobSpec job;
  job.set_model("counting");
  job.set_steps(options_.clocks);
  job.set_staleness(options_.staleness);
  job.set_deterministic(options_.deterministic);
  job.set_quorum(options_.quorum);
  job.set_grace_ms(options_.grace_ms);
  job.set_async_scale_sum(true);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.999);
  job.mutable_optimizer()->set_epsilon(1e-8);
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(1);
  job.set_push_codec(options_.push_codec);
  job.set_pull_codec(options_.pull_codec);
  job.set_topk_fraction(0.05);
  job.set_topk_warmup_steps(options_.clocks / 2);
  job.set_chunk_bytes(1024);
  job.set_train_samples(1000);
  job.set_lease_samples(10);
  return job;
}

void Cluster::StartWorker(int32_t rank) {
  SimWorkerOptions options{.wanted_rank = rank,
                           .job = Job(),
                           .tensors = {},
                           .think_max_ns = options_.think_max_ns,
                           .empty_chance = options_.empty_chance,
                           .report_steps = options_.report_steps,
                           .reduce = options_.reduce};
  for (uint32_t i = 0; i < options_.chunks; ++i) {
    control::TensorSpec& tensor = options.tensors.emplace_back();
    tensor.set_name("t" + std::to_string(i));
    tensor.add_shape(256);  // A chunk of 1 KiB.
  }
  workers_.push_back(std::make_unique<SimWorker>(
      network_, control_, ledger_, options, [this] { return Members(); },
      "worker" + std::to_string(processes_++), rng_.Next()));
}

// Lives that are members on every shard, as far as the coordinator knows and a reader may rely on.
std::vector<SimWorker::Membership> Cluster::Members() const {
  std::vector<SimWorker::Membership> members;
  const auto& known = control_.state().membership().workers();
  for (const auto& worker : workers_) {
    if (worker == nullptr || !worker->membership()) continue;
    const SimWorker::Membership& life = *worker->membership();
    const auto record = known.find(life.worker);
    if (record == known.end() || record->second.incarnation != life.incarnation ||
        record->second.state != server::coordinator::WorkerState::kMember) {
      continue;
    }
    // In BSP a joiner may have missed rounds that were closed before its view was here.
    if (options_.staleness == 0 && life.first_clock > 0) continue;
    members.push_back(life);
  }
  return members;
}

// ---- Faults ----

void Cluster::StartFaults() {
  faults_started_ = true;
  const auto sometime = [&] {
    return network_.NowNs() +
           static_cast<TimeNs>(rng_.Below(static_cast<uint64_t>(options_.fault_window_ns)));
  };
  const auto any_worker = [this] { return rng_.Below(workers_.size()); };
  for (uint32_t i = 0; i < options_.kills; ++i) {
    network_.At(sometime(), [this, any_worker] { Kill(any_worker()); });
  }
  for (uint32_t i = 0; i < options_.stalls; ++i) {
    network_.At(sometime(), [this, any_worker] {
      SimWorker* worker = workers_[any_worker()].get();
      if (worker != nullptr) worker->StallUntil(network_.NowNs() + 2 * options_.lease_ns);
    });
  }
  for (uint32_t i = 0; i < options_.control_cuts; ++i) {
    network_.At(sometime(), [this] { control_.CutOne(); });
  }
  const auto any_link = [this] {
    const SimServer& server = *servers_[rng_.Below(servers_.size())];
    return std::pair("worker" + std::to_string(rng_.Below(processes_)),
                     server.name() + "/" + std::to_string(rng_.Below(server.shards())));
  };
  for (uint32_t i = 0; i < options_.link_cuts; ++i) {
    network_.At(sometime(), [this, any_link] {
      const auto [worker, shard] = any_link();
      network_.Cut(worker, shard);
    });
  }
  for (uint32_t i = 0; i < options_.partitions; ++i) {
    network_.At(sometime(), [this, any_link] {
      const auto [worker, shard] = any_link();
      network_.Partition(worker, shard);
      network_.At(network_.NowNs() + static_cast<TimeNs>(rng_.Below(kNsPerSecond)),
                  [this, worker = worker, shard = shard] { network_.Heal(worker, shard); });
    });
  }
}

bool Cluster::LastOne() const {
  return std::count_if(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker != nullptr; }) <= 1;
}

void Cluster::Kill(size_t index) {
  if (workers_[index] == nullptr || workers_[index]->ended()) return;
  const auto membership = workers_[index]->membership();
  Retire(*workers_[index]);
  // Someone has to finish the job.
  const bool replaced = rng_.Chance(options_.replace_chance) || LastOne();
  workers_[index].reset();
  if (!replaced) {
    all_replaced_ = false;
    return;
  }
  const int32_t rank = membership ? static_cast<int32_t>(membership->worker) : -1;
  network_.At(network_.NowNs() + static_cast<TimeNs>(rng_.Below(300'000'000)),
              [this, rank] { StartWorker(rank); });
}

void Cluster::Retire(const SimWorker& worker) {
  for (const std::string& error : worker.errors()) Wrong(error);
  result_.longest_wait_ns = std::max(result_.longest_wait_ns, worker.longest_wait_ns());
  result_.largest_staleness = std::max(result_.largest_staleness, worker.largest_staleness());
  result_.resends += worker.stats().resends;
  result_.duplicates += worker.stats().duplicates;
  result_.links_lost += worker.stats().links_lost;
  result_.busy += worker.stats().busy;
  result_.lives += worker.stats().requests > 0;
}

// Processes that ended exit; one that was thrown out is started again, by whoever watches it.
void Cluster::Reap() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] == nullptr || !workers_[i]->ended()) continue;
    const bool thrown_out = workers_[i]->phase() == SimWorker::Phase::kGone;
    Retire(*workers_[i]);
    workers_[i].reset();
    if (!thrown_out || control_.exited()) continue;
    network_.At(network_.NowNs() + 50 * kNsPerMs, [this] {
      if (control_.state().phase() <= server::coordinator::JobPhase::kRunning) StartWorker(-1);
    });
  }
}

// ---- The run ----

ClusterResult Cluster::Run() {
  const TimeNs start_ns = network_.NowNs();
  const TimeNs deadline_ns = start_ns + kPatienceNs;
  while (!control_.exited() && network_.NowNs() < deadline_ns && result_.errors.empty()) {
    if (!network_.Step()) break;
    if (!faults_started_ && control_.state().phase() == server::coordinator::JobPhase::kRunning) {
      StartFaults();
    }
    Reap();
  }
  CheckEnd();
  result_.trace_hash = network_.trace_hash();
  result_.events = network_.event_count();
  result_.acknowledged = ledger_.acknowledged();
  result_.refused = ledger_.refused();
  result_.unanswered = ledger_.unanswered();
  result_.aggregates = ledger_.aggregates();
  result_.duration_ns = network_.NowNs() - start_ns;
  return std::move(result_);
}

void Cluster::CheckEnd() {
  if (!control_.exited()) Wrong("the job did not end");
  if (control_.exited() && control_.exit_code() != 0) {
    Wrong("the job failed: " + control_.exit_reason());
  }
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    Retire(*worker);
    if (!result_.errors.empty()) Wrong(worker->name() + ": " + worker->Describe());
  }
  for (const std::string& violation : network_.violations()) Wrong(violation);
  for (const auto& server : servers_) {
    for (const std::string& error : server->errors()) Wrong(server->name() + ": " + error);
    for (size_t i = 0; i < server->shards(); ++i) {
      const server::ChunkStore* store = server->shard(i).chunks();
      for (uint32_t local = 0; store != nullptr && local < store->size(); ++local) {
        const server::Chunk& chunk = store->at(local);
        const std::span<const float> weights(chunk.master, chunk.count);
        result_.weights_hash = Mix64(result_.weights_hash ^ Hash64(std::as_bytes(weights)));
        if (!control_.exited()) continue;
        const std::string wrong = ledger_.CheckFinal(chunk.index, weights);
        if (!wrong.empty()) Wrong("after the end:\n" + wrong);
      }
    }
  }
  if (!result_.errors.empty()) Wrong("the coordinator's last lines:\n" + control_.LogTail());
}

}  // namespace slackline::sim
