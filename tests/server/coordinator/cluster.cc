#include "tests/server/coordinator/cluster.h"

#include <gtest/gtest.h>

#include "transport/control/control_channel.h"

namespace slackline::server::coordinator {
namespace {

constexpr TimeNs kTick = 100 * kNsPerMs;
constexpr int kTicksPerHeartbeat = 5;

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

const control::Envelope* Newest(const std::vector<control::Envelope>& inbox,
                                control::Envelope::BodyCase kind) {
  for (auto it = inbox.rbegin(); it != inbox.rend(); ++it) {
    if (it->body_case() == kind) return &*it;
  }
  return nullptr;
}

}  // namespace

control::JobSpec SmallJob() {
  control::JobSpec job;
  job.set_model("mlp");
  job.set_model_config_json(R"({"width":4})");
  job.set_steps(100);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.999);
  job.mutable_optimizer()->set_epsilon(1e-8);
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(0.1);
  job.set_push_codec("fp32");
  job.set_pull_codec("fp32");
  job.set_chunk_bytes(1024);
  job.set_train_samples(1000);
  job.set_lease_samples(100);
  return job;
}

control::TensorSpec Tensor(const std::string& name, const std::vector<int64_t>& shape) {
  control::TensorSpec tensor;
  tensor.set_name(name);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  tensor.set_decay(true);
  return tensor;
}

Tensors SmallModel() {
  Tensors tensors;
  *tensors.Add() = Tensor("w", {8, 4});
  *tensors.Add() = Tensor("b", {4});
  return tensors;
}

const control::View* Cluster::Peer::view() const {
  const auto* found = Newest(inbox, control::Envelope::kView);
  return found == nullptr ? nullptr : &found->view();
}
const control::ShardMap* Cluster::Peer::map() const {
  const auto* found = Newest(inbox, control::Envelope::kShardMap);
  return found == nullptr ? nullptr : &found->shard_map();
}
const control::Shutdown* Cluster::Peer::shutdown() const {
  const auto* found = Newest(inbox, control::Envelope::kShutdown);
  return found == nullptr ? nullptr : &found->shutdown();
}
const control::Error* Cluster::Peer::error() const {
  const auto* found = Newest(inbox, control::Envelope::kError);
  return found == nullptr ? nullptr : &found->error();
}
const control::TakeCheckpoint* Cluster::Peer::take_checkpoint() const {
  const auto* found = Newest(inbox, control::Envelope::kTakeCheckpoint);
  return found == nullptr ? nullptr : &found->take_checkpoint();
}

Cluster::Cluster(CoordinatorOptions options)
    : state(std::make_unique<CoordinatorState>(std::move(options), now)) {}

Cluster::Peer& Cluster::AddServer(const std::string& instance, int shards) {
  Peer& peer = servers.emplace_back();
  peer.connection = next_connection_++;
  control::RegisterServer& who = *peer.registration.mutable_register_server();
  who.set_protocol_version(transport::kControlProtocolVersion);
  who.set_host("host-" + instance);
  who.set_pid(1);
  who.set_instance(instance);
  for (int i = 0; i < shards; ++i) {
    who.add_shard_addresses("tcp://" + instance + ":" + std::to_string(1000 + i));
  }
  Say(peer, peer.registration);
  return peer;
}

Cluster::Peer& Cluster::AddWorker(const std::string& instance, int32_t rank,
                                  const control::JobSpec& job) {
  Peer& peer = workers.emplace_back();
  peer.connection = next_connection_++;
  control::RegisterWorker& who = *peer.registration.mutable_register_worker();
  who.set_protocol_version(transport::kControlProtocolVersion);
  who.set_host("host-" + instance);
  who.set_pid(2);
  who.set_instance(instance);
  who.set_wanted_rank(rank);
  *who.mutable_job() = job;
  Say(peer, peer.registration);
  return peer;
}

void Cluster::StartAll(int server_count, int worker_count, const control::JobSpec& job) {
  for (int i = 0; i < server_count; ++i) AddServer("s" + std::to_string(i));
  for (int i = 0; i < worker_count; ++i) AddWorker("w" + std::to_string(i), -1, job);
  for (Peer& worker : workers) Declare(worker);
  Run(kNsPerSecond);
  ASSERT_EQ(state->phase(), JobPhase::kRunning);
}

std::optional<control::Envelope> Cluster::Say(Peer& peer, control::Envelope message) {
  const uint64_t id = next_request_++;
  message.set_id(id);
  Carry(state->OnMessage(peer.connection, message, now));
  const auto answer = answers_.find(id);
  if (answer == answers_.end()) return std::nullopt;
  return answer->second;
}

std::optional<control::Envelope> Cluster::Declare(Peer& worker, const Tensors& tensors) {
  control::Envelope message;
  *message.mutable_declare_model()->mutable_tensors() = tensors;
  return Say(worker, message);
}

std::optional<control::Envelope> Cluster::Arrive(Peer& worker, const std::string& barrier) {
  control::Envelope message;
  message.mutable_barrier_arrive()->set_name(barrier);
  return Say(worker, message);
}

std::optional<control::Envelope> Cluster::Lease(Peer& worker, uint32_t count) {
  control::Envelope message;
  message.mutable_data_lease_request()->set_count(count);
  return Say(worker, message);
}

void Cluster::Leave(Peer& peer, bool done, const std::string& reason) {
  control::Envelope message;
  message.mutable_leave()->set_done(done);
  message.mutable_leave()->set_reason(reason);
  Say(peer, message);
  peer.alive = false;
  Carry(state->OnDisconnected(peer.connection, now));
}

std::optional<control::Envelope> Cluster::SayAsStranger(control::Envelope message) {
  Peer stranger;
  stranger.connection = next_connection_++;
  return Say(stranger, std::move(message));
}

void Cluster::Heartbeat(Peer& peer) {
  control::Envelope message;
  control::Heartbeat& heartbeat = *message.mutable_heartbeat();
  if (peer.registration.has_register_server() && peer.registered) {
    const int shards = peer.registration.register_server().shard_addresses_size();
    for (int i = 0; i < shards; ++i) {
      control::ShardReport& report = *heartbeat.add_shards();
      report.set_shard(peer.registered->first_shard() + static_cast<uint32_t>(i));
      report.set_epoch(peer.epoch);
      report.set_view_version(peer.view_version);
      report.set_min_clock(peer.min_clock);
      report.set_chunks_initialised(peer.chunks_initialised);
      for (const auto& [life, clock] : peer.highest) {
        control::WorkerClock& entry = *report.add_worker_clocks();
        entry.set_worker(life.first);
        entry.set_incarnation(life.second);
        entry.set_highest(clock);
      }
    }
  }
  for (const control::StepReport& step : peer.steps) *heartbeat.add_steps() = step;
  peer.steps.clear();
  Say(peer, message);
}

void Cluster::Kill(Peer& peer) {
  peer.alive = false;
  Carry(state->OnDisconnected(peer.connection, now));
}

void Cluster::Reconnect(Peer& peer) {
  Carry(state->OnDisconnected(peer.connection, now));
  peer.connection = next_connection_++;
  Say(peer, peer.registration);
}

void Cluster::Tick(TimeNs step) {
  now += step;
  Carry(state->OnTick(now));
}

void Cluster::Run(TimeNs duration) {
  const TimeNs end = now + duration;
  for (int tick = 0; now < end; ++tick) {
    Tick(kTick);
    if (tick % kTicksPerHeartbeat != 0) continue;
    for (auto* peers : {&servers, &workers}) {
      for (Peer& peer : *peers) {
        if (peer.alive) Heartbeat(peer);
      }
    }
  }
}

Cluster::Peer* Cluster::FindPeer(ConnectionId connection) {
  for (auto* peers : {&servers, &workers}) {
    for (Peer& peer : *peers) {
      if (peer.connection == connection) return &peer;
    }
  }
  return nullptr;
}

void Cluster::Deliver(const Send& send) {
  if (send.envelope.answers() != 0) answers_[send.envelope.answers()] = send.envelope;
  Peer* peer = FindPeer(send.connection);
  if (peer == nullptr) return;
  peer->inbox.push_back(send.envelope);
  if (send.envelope.has_registered()) peer->registered = send.envelope.registered();
  if (!peer->applies) return;
  if (send.envelope.has_view()) peer->view_version = send.envelope.view().version();
  if (send.envelope.has_shard_map()) peer->epoch = send.envelope.shard_map().epoch();
}

void Cluster::Carry(Outputs outputs) {
  for (Output& output : outputs) {
    std::visit(
        Overloaded{
            [&](const Send& send) { Deliver(send); },
            [&](const Close&) {},
            [&](const Log& line) { log.push_back(line.text); },
            [&](const AppendMetrics& line) { metrics.push_back(line.line); },
            [&](const WriteRunFile& file) { files[file.name] = file.content; },
            [&](const PrepareCheckpoint& prepare) {
              Carry(state->OnCheckpointPrepared(
                  prepare.id, prepare_fails ? Internal("no directory") : OkStatus(), now));
            },
            [&](const CommitCheckpoint& commit) {
              if (!commit_fails) committed.push_back(commit.plan);
              Carry(state->OnCheckpointCommitted(
                  commit.plan.id, commit_fails ? Internal("disk is full") : OkStatus(), now));
            },
            [&](const DiscardCheckpoint& discard) { discarded.push_back(discard.directory); },
            [&](const Exit& end) { exit = end; },
        },
        output);
  }
}

bool Cluster::Logged(const std::string& text) const {
  for (const std::string& line : log) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace slackline::server::coordinator
