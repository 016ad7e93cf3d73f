// What each message of a server or a worker does. Values are a peer's: everything is checked
// against what the coordinator knows before it is kept.
#include <algorithm>
#include <cmath>

#include "server/coordinator/coordinator_state.h"
#include "server/coordinator/limits.h"
#include "server/coordinator/shard_map.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

using control::Envelope;

std::string Bounded(const std::string& text) { return Printable(text, kMaxReasonBytes); }

Envelope AckEnvelope() {
  Envelope envelope;
  envelope.mutable_ack();
  return envelope;
}

}  // namespace

Status CoordinatorState::Dispatch(ConnectionId connection, const Envelope& message) {
  switch (message.body_case()) {
    case Envelope::kRegisterServer:
      return OnRegisterServer(connection, message);
    case Envelope::kRegisterWorker:
      return OnRegisterWorker(connection, message);
    case Envelope::kStatusRequest: {
      Envelope page;
      page.mutable_status_page()->set_json(StatusJson(now_));
      Answer(connection, message.id(), std::move(page));
      return OkStatus();
    }
    default:
      return DispatchMember(connection, message);
  }
}

Status CoordinatorState::DispatchMember(ConnectionId connection, const Envelope& message) {
  const Membership::Holder holder = membership_.Find(connection);
  if (holder.role == Role::kNone) {
    return FailedPrecondition(
        "this connection is not registered (when a lease runs out, its registration ends)");
  }
  const bool is_worker = holder.role == Role::kWorker;
  Status status;
  switch (message.body_case()) {
    case Envelope::kHeartbeat: {
      status = OnHeartbeat(holder, message.heartbeat());
      Envelope ack;
      ack.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      if (status.ok()) Answer(connection, message.id(), std::move(ack));
      return status;
    }
    case Envelope::kBarrierArrive:
      if (!is_worker) break;
      return OnBarrierArrive(connection, membership_.worker(holder.index), message);
    case Envelope::kDataLeaseRequest:
      if (!is_worker) break;
      return OnDataLeaseRequest(connection, membership_.worker(holder.index), message);
    case Envelope::kLeave:
      Answer(connection, message.id(), AckEnvelope());
      OnLeave(holder, message.leave());
      return OkStatus();
    case Envelope::kDeclareModel:
      if (!is_worker) break;
      status = OnDeclareModel(&membership_.worker(holder.index), message.declare_model());
      if (status.ok()) Answer(connection, message.id(), AckEnvelope());
      return status;
    case Envelope::kDataLeaseDone:
      if (!is_worker) break;
      if (data_leases_) {
        data_leases_->Finish(holder.index, message.data_lease_done().lease_ids());
      }
      Answer(connection, message.id(), AckEnvelope());
      return OkStatus();
    case Envelope::kFinalReport:
      if (!is_worker) break;
      status = OnFinalReport(membership_.worker(holder.index), message.final_report());
      if (status.ok()) Answer(connection, message.id(), AckEnvelope());
      return status;
    case Envelope::kCheckpointShardDone:
      if (is_worker) break;
      status = OnCheckpointShardDone(holder.index, message.checkpoint_shard_done());
      if (status.ok()) Answer(connection, message.id(), AckEnvelope());
      return status;
    default:
      break;
  }
  return InvalidArgument(Text("a ", is_worker ? "worker" : "server",
                              " does not send messages of kind ",
                              static_cast<int>(message.body_case())));
}

// ---- Joining ----

Status CoordinatorState::OnRegisterServer(ConnectionId connection, const Envelope& message) {
  const control::RegisterServer& who = message.register_server();
  SLACKLINE_RETURN_IF_ERROR(CheckIntroduction(who.protocol_version(), who.host(), who.instance()));
  if (phase_ >= JobPhase::kEnding) return Aborted("the job has ended: " + end_reason_);
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Membership::Registration registration,
                                    membership_.RegisterServer(connection, who, Placed(), now_));
  const ServerRecord& server = membership_.servers()[registration.index];
  if (registration.superseded != kNoConnection) {
    outputs_.push_back(Close{registration.superseded});
  }
  LogLine(Log::Level::kInfo,
          Text("server ", server.id, registration.reconnected ? " is back (" : " has joined (",
               server.Place(), ", ", Plural(server.addresses.size(), "shard"), ")"));
  SendRegistered(connection, message.id(), server.id, 0, server.first_shard);
  if (!Placed()) return OkStatus();
  SendView(connection);
  SendMap(connection);
  if (checkpoints_ && checkpoints_->phase() == Checkpoints::Phase::kWriting) {
    SendTakeCheckpoint(server);
  }
  return OkStatus();
}

Status CoordinatorState::OnRegisterWorker(ConnectionId connection, const Envelope& message) {
  const control::RegisterWorker& who = message.register_worker();
  SLACKLINE_RETURN_IF_ERROR(CheckIntroduction(who.protocol_version(), who.host(), who.instance()));
  if (phase_ >= JobPhase::kFinishing) {
    return Aborted(phase_ == JobPhase::kFinishing ? "the job has finished"
                                                  : "the job has ended: " + end_reason_);
  }
  const bool running = phase_ == JobPhase::kRunning;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const WorkerId rank,
                                    membership_.ChooseRank(connection, who, running, now_));
  SLACKLINE_RETURN_IF_ERROR(AgreeOnJob(rank, who.job()));
  const Membership::Registration registration =
      membership_.RegisterWorker(connection, who, rank, now_);
  const WorkerRecord& worker = membership_.worker(rank);
  if (registration.superseded != kNoConnection) {
    outputs_.push_back(Close{registration.superseded});
  }
  LogLine(Log::Level::kInfo,
          Text("worker ", rank, registration.reconnected ? " is back (" : " has joined (",
               worker.Place(), ", life ", worker.incarnation, ")"));
  SendRegistered(connection, message.id(), rank, worker.incarnation, 0);
  if (worker.started) {
    SendView(connection);
    SendMap(connection);
  }
  return OkStatus();
}

Status CoordinatorState::AgreeOnJob(WorkerId rank, const control::JobSpec& job) {
  SLACKLINE_RETURN_IF_ERROR(CheckJob(job));
  if (job.quorum() > options_.expected_workers) {
    return InvalidArgument(Text("--quorum=", job.quorum(), ": expected at most the ",
                                Plural(options_.expected_workers, "worker"), " of the job"));
  }
  if (job_) return CompareJobs(*job_, Text("worker ", rank), job);
  return AdoptJob(job);
}

Status CoordinatorState::AdoptJob(const control::JobSpec& job) {
  Clock first_clock = 0;
  if (options_.restore) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const std::vector<std::string> changes,
                                      CompareForResume(options_.restore->job, job));
    first_clock = options_.restore->clock + 1;
    if (first_clock >= job.steps()) {
      return InvalidArgument(Text("--steps=", job.steps(), ": the checkpoint ",
                                  options_.restore->directory, " has ", first_clock,
                                  " steps already; expected more"));
    }
    for (const std::string& change : changes) {
      LogLine(Log::Level::kWarning, "differs from the checkpoint: " + change);
    }
  }
  if (job.checkpoint_every() > 0 && options_.checkpoint_directory.empty()) {
    LogLine(Log::Level::kWarning, Text("--checkpoint_every=", job.checkpoint_every(),
                                       " has no effect: the coordinator runs without "
                                       "--checkpoint"));
  }
  job_ = job;
  data_leases_.emplace(job.train_samples(), job.lease_samples());
  checkpoints_.emplace(Checkpoints::Options{.directory = options_.checkpoint_directory,
                                            .exact_cut = HasExactRounds(job),
                                            .every = job.checkpoint_every(),
                                            .first_clock = first_clock,
                                            .steps = job.steps(),
                                            .timeout_ns = options_.checkpoint_timeout_ns});
  if (options_.restore) checkpoints_->set_last_target(options_.restore->directory);
  return OkStatus();
}

Status CoordinatorState::OnDeclareModel(WorkerRecord* worker, const control::DeclareModel& model) {
  const std::string who = Text("worker ", worker->rank);
  SLACKLINE_RETURN_IF_ERROR(CheckTensors(model.tensors()));
  if (!tensors_.empty()) {
    SLACKLINE_RETURN_IF_ERROR(CompareTensors(tensors_, "the job", who, model.tensors()));
  } else {
    if (options_.restore) {
      SLACKLINE_RETURN_IF_ERROR(
          CompareTensors(options_.restore->tensors, "the checkpoint", who, model.tensors()));
    }
    SLACKLINE_RETURN_IF_ERROR(AdoptModel(model.tensors()));
  }
  if (worker->state == WorkerState::kRegistered) worker->state = WorkerState::kDeclared;
  return OkStatus();
}

Status CoordinatorState::AdoptModel(const Tensors& tensors) {
  if (options_.restore) {
    // The files hold the chunks as they were cut then.
    chunks_ = options_.restore->chunks;
  } else {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(chunks_, CutIntoChunks(tensors, job_->chunk_bytes()));
  }
  tensors_ = tensors;
  return OkStatus();
}

// ---- Staying ----

Status CoordinatorState::OnHeartbeat(const Membership::Holder& holder,
                                     const control::Heartbeat& heartbeat) {
  if (holder.role == Role::kServer) {
    membership_.server(holder.index).waiting_for = Bounded(heartbeat.waiting_for());
    for (const control::ShardReport& report : heartbeat.shards()) {
      OnShardReport(holder.index, report);
    }
    return OkStatus();
  }
  if (heartbeat.steps_size() > kMaxStepsPerHeartbeat) {
    return InvalidArgument(Text("a heartbeat with ", heartbeat.steps_size(),
                                " step reports: at most ", kMaxStepsPerHeartbeat));
  }
  WorkerRecord& worker = membership_.worker(holder.index);
  worker.waiting_for = Bounded(heartbeat.waiting_for());
  worker.clock = std::clamp<Clock>(heartbeat.clock().value(), kNoClock, kMaxSteps);
  worker.loss_scale = heartbeat.clock().loss_scale();
  if (worker.state != WorkerState::kMember) return OkStatus();
  for (const control::StepReport& report : heartbeat.steps()) {
    auto line = metrics_.OnStep(worker.rank, worker.incarnation, report, now_);
    if (line) outputs_.push_back(AppendMetrics{std::move(*line)});
  }
  return OkStatus();
}

void CoordinatorState::OnShardReport(uint32_t server, const control::ShardReport& report) {
  // Before the map exists there is nothing to report; a shard of another server is not this one's
  // to report; numbers above ours are of no map or view that was ever sent.
  if (report.shard() >= shards_.size() || shards_[report.shard()].server != server ||
      report.epoch() > map_.epoch() || report.view_version() > view_version_) {
    return;
  }
  for (const control::WorkerClock& clock : report.worker_clocks()) {
    const auto found = membership_.workers().find(clock.worker());
    if (found == membership_.workers().end()) continue;
    WorkerRecord& worker = found->second;
    if (clock.incarnation() > worker.incarnation || clock.highest() >= job_->steps()) continue;
    worker.highest_ever = std::max(worker.highest_ever, clock.highest());
    if (clock.incarnation() == worker.incarnation) {
      worker.highest = std::max(worker.highest, clock.highest());
    }
  }
  // Only the numbers are kept.
  control::ShardReport& kept = shards_[report.shard()].report;
  kept = report;
  kept.clear_worker_clocks();
  kept.set_min_clock(std::clamp<Clock>(report.min_clock(), kNoClock, job_->steps() - 1));
}

void CoordinatorState::OnLeave(const Membership::Holder& holder, const control::Leave& leave) {
  const std::string reason = Bounded(leave.reason());
  if (holder.role == Role::kServer) {
    LoseServer(holder.index, reason.empty() ? "left" : "left: " + reason);
    return;
  }
  const WorkerRecord& worker = membership_.worker(holder.index);
  const bool done = leave.done() && worker.state == WorkerState::kMember;
  const std::string why = done             ? "is done"
                          : reason.empty() ? "left before its time"
                                           : "left before its time: " + reason;
  RemoveWorker(holder.index, done ? WorkerState::kDone : WorkerState::kVacant, true, why);
}

// ---- Working together ----

Status CoordinatorState::OnBarrierArrive(ConnectionId connection, const WorkerRecord& worker,
                                         const Envelope& message) {
  if (!worker.started) {
    return FailedPrecondition(Text("worker ", worker.rank, " is not a member yet"));
  }
  return barriers_.Arrive(message.barrier_arrive().name(), worker.rank, connection, message.id());
}

Status CoordinatorState::OnDataLeaseRequest(ConnectionId connection, const WorkerRecord& worker,
                                            const Envelope& message) {
  if (!worker.started) {
    return FailedPrecondition(Text("worker ", worker.rank, " is not a member yet"));
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      control::DataLease lease,
      data_leases_->Take(worker.rank, message.data_lease_request().count()));
  Envelope envelope;
  *envelope.mutable_data_lease() = std::move(lease);
  Answer(connection, message.id(), std::move(envelope));
  return OkStatus();
}

Status CoordinatorState::OnCheckpointShardDone(uint32_t server,
                                               const control::CheckpointShardDone& report) {
  if (report.shard() >= shards_.size() || shards_[report.shard()].server != server) {
    return InvalidArgument(Text("a checkpoint report of shard ", report.shard(), ", which server ",
                                server, " does not hold"));
  }
  const Result<bool> complete = checkpoints_->OnShardDone(report);
  if (!complete) {
    if (complete.error().code() != StatusCode::kAborted) return complete.error();
    AbandonCheckpoint(complete.error().message());
    return OkStatus();
  }
  if (*complete) outputs_.push_back(CommitCheckpoint{checkpoints_->plan()});
  return OkStatus();
}

Status CoordinatorState::OnFinalReport(const WorkerRecord& worker,
                                       const control::FinalReport& report) {
  if (!worker.started) {
    return FailedPrecondition(Text("worker ", worker.rank, " is not a member"));
  }
  if (report.sample().size() > kMaxSampleBytes) {
    return InvalidArgument(
        Text("a sample of ", report.sample().size(), " bytes: at most ", kMaxSampleBytes));
  }
  if (report.has_validation_loss() && std::isfinite(report.validation_loss())) {
    final_.validation_loss = report.validation_loss();
  }
  final_.sample = report.sample();
  return OkStatus();
}

}  // namespace slackline::server::coordinator
