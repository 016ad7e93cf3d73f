// A simulated worker's side of the control plane.
#include <algorithm>
#include <utility>

#include "tests/sim/sim_worker.h"
#include "transport/control/control_channel.h"

namespace slackline::sim {
namespace {

constexpr TimeNs kRegisterAgainNs = 150 * kNsPerMs;

}  // namespace

void SimWorker::SendControl(control::Envelope message) {
  if (message.id() == 0) message.set_id(next_id_++);
  control_.Send(connection_, message);
}

void SimWorker::Register() {
  connection_ = control_.Open(this);
  control::Envelope message;
  control::RegisterWorker& who = *message.mutable_register_worker();
  who.set_protocol_version(transport::kControlProtocolVersion);
  who.set_host(name());
  who.set_pid(1);
  who.set_wanted_rank(options_.wanted_rank);
  who.set_instance("instance of " + name());
  *who.mutable_job() = options_.job;
  SendControl(std::move(message));
}

void SimWorker::OnControl(const control::Envelope& message) {
  inbox_.push_back(message);
  WakeSoon();
}

void SimWorker::OnControlLost() {
  lost_ = true;
  WakeSoon();
}

void SimWorker::Handle(const control::Envelope& message) {
  switch (message.body_case()) {
    case control::Envelope::kRegistered:
      OnRegistered(message.registered());
      break;
    case control::Envelope::kView:
      OnView(message.view());
      break;
    case control::Envelope::kShardMap:
      OnMap(message.shard_map());
      break;
    case control::Envelope::kShutdown:
      End(phase_ == Phase::kLeaving ? Phase::kLeft : Phase::kGone);
      break;
    case control::Envelope::kAck:
      if (message.answers() == leave_id_ && phase_ == Phase::kLeaving) End(Phase::kLeft);
      break;
    case control::Envelope::kError:
      // The place is still held by the life before: its lease has to run out first.
      if (phase_ == Phase::kRegistering &&
          message.error().code() != static_cast<uint32_t>(StatusCode::kAborted)) {
        register_again_ns_ = now_ns() + kRegisterAgainNs;
      } else {
        // An answer that said goodbye back may have been lost with its connection.
        End(phase_ == Phase::kLeaving ? Phase::kLeft : Phase::kGone);
      }
      break;
    default:
      break;
  }
}

void SimWorker::OnRegistered(const control::Registered& registered) {
  if (phase_ == Phase::kRegistering) {
    rank_ = registered.id();
    incarnation_ = registered.incarnation();
    heartbeat_ns_ = registered.heartbeat_ms() * kNsPerMs;
    next_heartbeat_ns_ = now_ns() + heartbeat_ns_;
    phase_ = Phase::kDeclaring;
  } else if (registered.id() != rank_ || registered.incarnation() != incarnation_) {
    Wrong("a reconnect changed who this process is");
  }
  if (phase_ == Phase::kLeaving) Leave();
  if (phase_ != Phase::kDeclaring) return;
  control::Envelope message;
  for (const control::TensorSpec& tensor : options_.tensors) {
    *message.mutable_declare_model()->add_tensors() = tensor;
  }
  SendControl(std::move(message));
}

void SimWorker::OnView(const control::View& view) {
  for (const control::Member& member : view.members()) {
    if (member.worker() != rank_ || member.incarnation() != incarnation_) continue;
    if (!first_clock_) first_clock_ = member.first_clock();
    return;
  }
  if (first_clock_ && phase_ != Phase::kLeaving) End(Phase::kGone);
}

void SimWorker::OnMap(const control::ShardMap& map) {
  if (phase_ != Phase::kDeclaring || !first_clock_) return;
  MakeBuffers(map);
  worker::CoreEvents& events = *this;
  const worker::CoreOptions options{
      .worker = rank_, .incarnation = incarnation_, .seed = rng_.Next()};
  core_ = std::make_unique<worker::ClientCore>(options, *endpoint_, network_.time(), events);
  worker::CoreMap core_map{
      .epoch = map.epoch(),
      .shard_addresses = {map.shard_addresses().begin(), map.shard_addresses().end()},
      .chunk_shard = {}};
  for (const control::Chunk& chunk : map.chunks()) core_map.chunk_shard.push_back(chunk.shard());
  const Status status = core_->SetMap(core_map);
  if (!status.ok()) Wrong("the map was refused: " + status.ToString());
  phase_ = Phase::kInitialising;
  initialising_since_ns_ = now_ns();
  clock_ = *first_clock_;
  membership_ = {rank_, incarnation_, *first_clock_, now_ns()};
  for (ChunkIndex chunk = 0; chunk < chunks_.size(); ++chunk) {
    rank_ == 0 ? SubmitInit(chunk) : SubmitPull(chunk);
  }
}

void SimWorker::Heartbeat() {
  if (now_ns() < next_heartbeat_ns_ || heartbeat_ns_ == kNever) return;
  next_heartbeat_ns_ = now_ns() + heartbeat_ns_;
  control::Envelope message;
  control::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.mutable_clock()->set_value(clock_ - 1);
  for (const control::StepReport& step : steps_) *heartbeat.add_steps() = step;
  steps_.clear();
  SendControl(std::move(message));
}

void SimWorker::Leave() {
  phase_ = Phase::kLeaving;
  leave_id_ = next_id_;
  control::Envelope message;
  message.mutable_leave()->set_done(true);
  SendControl(std::move(message));
}

}  // namespace slackline::sim
