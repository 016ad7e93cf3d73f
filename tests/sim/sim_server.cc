#include "tests/sim/sim_server.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "transport/control/control_channel.h"

namespace slackline::sim {

SimServer::SimServer(transport::SimNetwork& network, ControlPlane& control, std::string name,
                     uint32_t shards, uint32_t expected_workers, uint64_t seed)
    : SimProcess(network, std::move(name), seed),
      control_(control),
      expected_workers_(expected_workers) {
  for (uint32_t i = 0; i < shards; ++i) {
    Unit unit;
    unit.endpoint = network.CreateEndpoint(this->name() + "/" + std::to_string(i));
    unit.endpoint->set_on_ready([this] { WakeSoon(); });
    unit.address = unit.endpoint->Listen("sim://" + this->name() + ":0").value();
    units_.push_back(std::move(unit));
  }
  Register();
  WakeSoon();
}

SimServer::~SimServer() {
  control_.Close(connection_);
  for (Unit& unit : units_) {
    unit.endpoint->set_on_ready(nullptr);
    unit.shard.reset();  // Its memory is the endpoint's.
  }
}

void SimServer::Register() {
  connection_ = control_.Open(this);
  control::Envelope message;
  message.set_id(1);
  control::RegisterServer& who = *message.mutable_register_server();
  who.set_protocol_version(transport::kControlProtocolVersion);
  who.set_host(name());
  who.set_pid(1);
  who.set_instance("instance of " + name());
  for (const Unit& unit : units_) who.add_shard_addresses(unit.address);
  control_.Send(connection_, message);
}

void SimServer::OnControl(const control::Envelope& message) {
  inbox_.push_back(message);
  WakeSoon();
}

void SimServer::OnControlLost() {
  lost_ = true;
  WakeSoon();
}

void SimServer::Turn() {
  if (std::exchange(lost_, false) && !left_) Register();
  for (; !inbox_.empty(); inbox_.pop_front()) {
    if (!left_) Handle(inbox_.front());
  }
  TimeNs wake_ns = kNever;
  for (Unit& unit : units_) {
    if (unit.shard == nullptr) continue;
    unit.endpoint->Poll(0);
    unit.shard->OnTick(now_ns());
    wake_ns = std::min(wake_ns, unit.shard->NextDeadline());
    if (unit.endpoint->ready()) WakeSoon();
  }
  Heartbeat();
  WakeAt(std::min(wake_ns, next_heartbeat_ns_));
}

void SimServer::Handle(const control::Envelope& message) {
  Status status;
  switch (message.body_case()) {
    case control::Envelope::kRegistered:
      MakeShards(message.registered().first_shard());
      heartbeat_ns_ = message.registered().heartbeat_ms() * kNsPerMs;
      next_heartbeat_ns_ = now_ns();
      break;
    case control::Envelope::kView:
      for (Unit& unit : units_) {
        const Status one = unit.shard->InstallView(message.view());
        if (!one.ok()) status = one;
      }
      break;
    case control::Envelope::kShardMap:
      for (Unit& unit : units_) {
        const Status one = unit.shard->InstallMap(message.shard_map());
        if (!one.ok()) status = one;
      }
      break;
    case control::Envelope::kShutdown:
      LeaveCluster();
      break;
    case control::Envelope::kError:
      // The word that the job has ended was lost with a connection.
      if (message.error().code() == static_cast<uint32_t>(StatusCode::kAborted)) {
        LeaveCluster();
        break;
      }
      status = Internal("the coordinator refused " + name() + ": " + message.error().message());
      break;
    default:
      break;
  }
  if (!status.ok()) errors_.push_back(status.ToString());
}

// The process would exit; its shards stay for the test to look at.
void SimServer::LeaveCluster() {
  left_ = true;
  heartbeat_ns_ = next_heartbeat_ns_ = kNever;
  control_.Close(connection_);
}

void SimServer::MakeShards(uint32_t first_shard) {
  for (uint32_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (unit.shard != nullptr) continue;  // Registered again after a cut.
    server::ShardOptions options{.shard = first_shard + i, .expected_workers = expected_workers_};
    unit.shard = std::make_unique<server::Shard>(*unit.endpoint, network_.time(), options);
    unit.endpoint->set_handler(unit.shard.get());
  }
}

void SimServer::Heartbeat() {
  if (heartbeat_ns_ == kNever) return;
  uint64_t state = 0;
  for (const Unit& unit : units_) {
    state += unit.shard->epoch() + unit.shard->view_version() + (unit.shard->initialised() ? 1 : 0);
  }
  // What the coordinator waits for is told at once.
  if (state == reported_ && now_ns() < next_heartbeat_ns_) return;
  reported_ = state;
  next_heartbeat_ns_ = now_ns() + heartbeat_ns_;
  control::Envelope message;
  control::Heartbeat& heartbeat = *message.mutable_heartbeat();
  for (const Unit& unit : units_) *heartbeat.add_shards() = unit.shard->Report();
  heartbeat.set_sequence(++sequence_);
  message.set_id(1000 + sequence_);
  control_.Send(connection_, message);
}

}  // namespace slackline::sim
