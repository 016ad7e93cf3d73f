#include "server/coordinator/coordinator_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

// The first report of what is missing at start-up comes early, the others at the usual interval.
constexpr TimeNs kFirstWaitReport = 2 * kNsPerSecond;
constexpr TimeNs kStatusInterval = kNsPerSecond;
constexpr TimeNs kMaxHeartbeatInterval = 500 * kNsPerMs;
// A lease survives the loss of this many heartbeats.
constexpr TimeNs kHeartbeatsPerLease = 5;
constexpr Clock kMinLead = 2;

}  // namespace

std::string_view JobPhaseName(JobPhase phase) {
  switch (phase) {
    case JobPhase::kGathering:
      return "gathering";
    case JobPhase::kPlacing:
      return "placing";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kFinishing:
      return "finishing";
    case JobPhase::kEnding:
      return "ending";
    case JobPhase::kEnded:
      return "ended";
  }
  return "?";
}

CoordinatorState::CoordinatorState(CoordinatorOptions options, TimeNs now)
    : options_(std::move(options)),
      start_ns_(now),
      now_(now),
      phase_since_ns_(now),
      next_wait_report_ns_(now + kFirstWaitReport),
      next_status_ns_(now),
      membership_({options_.expected_servers, options_.expected_workers, options_.lease_ns}) {}

// ---- Events ----

void CoordinatorState::Enter(TimeNs now) {
  const TimeNs silence = now - now_;
  if (silence > kOwnStall) {
    membership_.ExtendLeases(silence);
    LogLine(Log::Level::kWarning,
            Text("the coordinator stood still for ", Seconds(silence), "; leases are extended"));
  }
  now_ = now;
}

Outputs CoordinatorState::Take() {
  Advance();
  return std::exchange(outputs_, {});
}

Outputs CoordinatorState::OnMessage(ConnectionId connection, const control::Envelope& message,
                                    TimeNs now) {
  Enter(now);
  membership_.Touch(connection, now);
  const Status status = Dispatch(connection, message);
  if (!status.ok()) Refuse(connection, message.id(), status);
  return Take();
}

Outputs CoordinatorState::OnDisconnected(ConnectionId connection, TimeNs now) {
  Enter(now);
  membership_.Disconnect(connection);
  return Take();
}

Outputs CoordinatorState::OnTick(TimeNs now) {
  Enter(now);
  ExpireLeases();
  CheckBounds();
  if (phase_ == JobPhase::kRunning) metrics_.OnProgress(SlowestClock(), now);
  Outputs outputs = Take();
  // After Advance, so that the page never lags behind what was decided in this tick.
  if (now >= next_status_ns_ || phase_ == JobPhase::kEnded) {
    outputs.push_back(WriteRunFile{"status.json", StatusJson(now)});
    next_status_ns_ = now + kStatusInterval;
  }
  return outputs;
}

Outputs CoordinatorState::OnInterrupt(const std::string& reason, TimeNs now) {
  Enter(now);
  if (phase_ < JobPhase::kEnding) Fail(reason);
  return Take();
}

Outputs CoordinatorState::OnCheckpointPrepared(uint64_t id, const Status& status, TimeNs now) {
  Enter(now);
  if (!checkpoints_ || checkpoints_->plan().id != id) return Take();
  if (!status.ok()) {
    AbandonCheckpoint(status.message());
  } else if (checkpoints_->OnPrepared(id, ShardsWithChunks())) {
    for (const ServerRecord& server : membership_.servers()) SendTakeCheckpoint(server);
  }
  return Take();
}

Outputs CoordinatorState::OnCheckpointCommitted(uint64_t id, const Status& status, TimeNs now) {
  Enter(now);
  if (!checkpoints_ || checkpoints_->plan().id != id) return Take();
  if (!status.ok()) {
    AbandonCheckpoint(status.message());
  } else if (checkpoints_->OnCommitted(id)) {
    LogLine(Log::Level::kInfo, Text("checkpoint ", checkpoints_->last_target(), " is complete"));
  }
  return Take();
}

// ---- Sending ----

void CoordinatorState::SendTo(ConnectionId connection, control::Envelope envelope) {
  if (connection == kNoConnection) return;
  outputs_.push_back(Send{connection, std::move(envelope)});
}

void CoordinatorState::Answer(ConnectionId connection, uint64_t request_id,
                              control::Envelope envelope) {
  if (request_id == 0) return;  // A notice wants no answer.
  envelope.set_answers(request_id);
  SendTo(connection, std::move(envelope));
}

void CoordinatorState::Refuse(ConnectionId connection, uint64_t request_id, const Status& status) {
  ++refusals_;
  const int64_t second = now_ / kNsPerSecond;
  if (second != refusal_second_) {
    refusal_second_ = second;
    refusals_in_second_ = 0;
  }
  if (++refusals_in_second_ <= kMaxRefusalsLogged) {
    LogLine(Log::Level::kWarning, Text("refused (connection ", connection, "): ", status));
  }
  control::Envelope envelope;
  envelope.mutable_error()->set_code(static_cast<uint32_t>(status.code()));
  envelope.mutable_error()->set_message(status.message());
  Answer(connection, request_id, std::move(envelope));
}

void CoordinatorState::SendRegistered(ConnectionId connection, uint64_t request_id, uint32_t id,
                                      Incarnation incarnation, uint32_t first_shard) {
  control::Envelope envelope;
  control::Registered& registered = *envelope.mutable_registered();
  registered.set_id(id);
  registered.set_incarnation(incarnation);
  registered.set_lease_ms(options_.lease_ns / kNsPerMs);
  registered.set_heartbeat_ms(HeartbeatInterval() / kNsPerMs);
  if (job_) *registered.mutable_job() = *job_;
  registered.set_expected_workers(options_.expected_workers);
  registered.set_expected_servers(options_.expected_servers);
  registered.set_run_id(options_.run_id);
  registered.set_first_shard(first_shard);
  Answer(connection, request_id, std::move(envelope));
}

void CoordinatorState::SendView(ConnectionId connection) {
  control::Envelope envelope;
  control::View& view = *envelope.mutable_view();
  view.set_version(view_version_);
  for (const auto& [rank, worker] : membership_.workers()) {
    if (worker.state != WorkerState::kMember) continue;
    control::Member& member = *view.add_members();
    member.set_worker(rank);
    member.set_incarnation(worker.incarnation);
    member.set_first_clock(worker.first_clock);
  }
  SendTo(connection, std::move(envelope));
}

void CoordinatorState::SendMap(ConnectionId connection) {
  control::Envelope envelope;
  *envelope.mutable_shard_map() = map_;
  SendTo(connection, std::move(envelope));
}

void CoordinatorState::SendTakeCheckpoint(const ServerRecord& server) {
  const CheckpointPlan& plan = checkpoints_->plan();
  control::Envelope envelope;
  control::TakeCheckpoint& command = *envelope.mutable_take_checkpoint();
  command.set_checkpoint_id(plan.id);
  command.set_clock(plan.clock);
  command.set_directory(plan.directory);
  command.set_final(plan.final);
  SendTo(server.connection, std::move(envelope));
}

void CoordinatorState::PublishView() {
  ++view_version_;
  for (const ServerRecord& server : membership_.servers()) SendView(server.connection);
  for (const auto& [rank, worker] : membership_.workers()) {
    if (worker.started) SendView(worker.connection);
  }
}

void CoordinatorState::LogLine(Log::Level level, std::string text) {
  outputs_.push_back(Log{level, std::move(text)});
}

// ---- Looking ----

bool CoordinatorState::ShardsAt(uint64_t view_version) const {
  return std::all_of(shards_.begin(), shards_.end(), [&](const ShardState& shard) {
    return shard.report.epoch() == map_.epoch() && shard.report.view_version() >= view_version;
  });
}

Clock CoordinatorState::SlowestClock() const {
  Clock slowest = kNever;
  for (const ShardState& shard : shards_) {
    if (shard.chunks > 0) slowest = std::min(slowest, shard.report.min_clock());
  }
  return slowest == kNever ? kNoClock : slowest;
}

Clock CoordinatorState::HighestClock() const {
  Clock highest = map_.first_clock() - 1;
  for (const auto& [rank, worker] : membership_.workers()) {
    highest = std::max(highest, worker.highest_ever);
  }
  return highest;
}

Clock CoordinatorState::Lead() const {
  // A report is at most a heartbeat old when it is read, and a command about as long under way
  // before the slowest of the shards has it.
  const double seconds =
      2 * static_cast<double>(HeartbeatInterval()) / static_cast<double>(kNsPerSecond);
  return std::max(kMinLead, static_cast<Clock>(std::ceil(metrics_.ClocksPerSecond() * seconds)));
}

std::vector<ShardIndex> CoordinatorState::ShardsWithChunks() const {
  std::vector<ShardIndex> shards;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].chunks > 0) shards.push_back(static_cast<ShardIndex>(i));
  }
  return shards;
}

TimeNs CoordinatorState::HeartbeatInterval() const {
  return std::min(options_.lease_ns / kHeartbeatsPerLease, kMaxHeartbeatInterval);
}

}  // namespace slackline::server::coordinator
