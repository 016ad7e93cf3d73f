// How the job goes from phase to phase, and how the view changes.
#include <algorithm>

#include "server/coordinator/coordinator_state.h"
#include "server/coordinator/limits.h"
#include "server/coordinator/shard_map.h"
#include "server/coordinator/text.h"
#include "transport/control/control_channel.h"

namespace slackline::server::coordinator {
namespace {

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

}  // namespace

void CoordinatorState::Advance() {
  if (phase_ == JobPhase::kGathering) AdvanceGathering();
  if (phase_ == JobPhase::kPlacing) AdvancePlacing();
  if (phase_ == JobPhase::kRunning) AdvanceRunning();
  if (phase_ == JobPhase::kFinishing) AdvanceFinishing();
  if (phase_ == JobPhase::kEnding &&
      (membership_.connections() == 0 || now_ - phase_since_ns_ >= kShutdownGrace)) {
    phase_ = JobPhase::kEnded;
    outputs_.push_back(WriteRunFile{"status.json", StatusJson(now_)});
    outputs_.push_back(Exit{exit_code_, end_reason_});
  }
}

// ---- Start-up ----

void CoordinatorState::AdvanceGathering() {
  const size_t declared = membership_.CountWorkers(WorkerState::kDeclared);
  if (declared + membership_.CountWorkers(WorkerState::kRegistered) == 0) {
    // Whoever defined the job has gone; the next worker may define another.
    job_.reset();
    tensors_.Clear();
  }
  if (membership_.AllServersHere() && declared == options_.expected_workers) EnterPlacing();
}

void CoordinatorState::EnterPlacing() {
  phase_ = JobPhase::kPlacing;
  phase_since_ns_ = now_;
  next_wait_report_ns_ = now_ + kWaitReportInterval;
  const uint32_t shard_count = membership_.shard_count();
  if (!options_.restore && chunks_.size() < shard_count) {
    auto finer = CutForShards(tensors_, job_->chunk_bytes(), shard_count);
    if (!finer) return Fail(finer.error().message());
    chunks_ = std::move(*finer);
  }
  if (chunks_.size() < shard_count) {
    return Fail(Text("the checkpoint has ", Plural(chunks_.size(), "chunk"), " for ", shard_count,
                     " shards: use fewer servers or shards"));
  }
  AssignToShards(shard_count, &chunks_);
  shards_.assign(shard_count, {});
  map_.Clear();
  map_.set_epoch(1);
  for (const ServerRecord& server : membership_.servers()) {
    for (size_t i = 0; i < server.addresses.size(); ++i) {
      map_.add_shard_addresses(server.addresses[i]);
      ShardState& shard = shards_[server.first_shard + i];
      shard.server = server.id;
      shard.report.set_min_clock(kNoClock);
    }
  }
  for (control::Chunk& chunk : chunks_) {
    ++shards_[chunk.shard()].chunks;
    *map_.add_chunks() = std::move(chunk);
  }
  chunks_.clear();
  *map_.mutable_tensors() = tensors_;
  *map_.mutable_job() = *job_;
  if (options_.restore) {
    map_.set_restore_from(options_.restore->directory);
    map_.set_first_clock(options_.restore->clock + 1);
  }
  // The frame around the message needs a little room.
  if (map_.ByteSizeLong() > transport::kMaxControlBytes - 1024) {
    Fail(Text("the shard map of ", map_.chunks_size(), " chunks and ", map_.tensors_size(),
              " tensors does not fit into a message: choose a larger --chunk_bytes"));
    return;
  }
  for (auto& [rank, worker] : membership_.workers()) {
    if (worker.state != WorkerState::kDeclared) continue;
    worker.state = WorkerState::kMember;
    worker.first_clock = map_.first_clock();
    worker.admitted_view = view_version_ + 1;
  }
  PublishView();
  for (const ServerRecord& server : membership_.servers()) SendMap(server.connection);
  LogLine(
      Log::Level::kInfo,
      Text("all are here: ", Plural(static_cast<uint64_t>(map_.chunks_size()), "chunk"), " on ",
           Plural(shards_.size(), "shard"), " of ", Plural(membership_.servers().size(), "server"),
           ", ", Plural(options_.expected_workers, "worker"),
           options_.restore ? ", restoring " + map_.restore_from() : std::string()));
}

void CoordinatorState::AdvancePlacing() {
  if (membership_.CountWorkers(WorkerState::kMember) == 0) {
    Fail("no worker is left before training began: worker " + last_gone_);
    return;
  }
  if (!ShardsAt(view_version_)) return;
  phase_ = JobPhase::kRunning;
  phase_since_ns_ = now_;
  metrics_.Start(map_.first_clock(), job_->steps(), now_);
  LogLine(Log::Level::kInfo, Text("training begins at step ", map_.first_clock(), " of ",
                                  job_->steps(), " (", ModeName(job_->staleness()), ")"));
}

// ---- Running ----

void CoordinatorState::AdvanceRunning() {
  AdmitWaiting();
  StartMembers();
  ReleaseBarriers();
  StartDueCheckpoint();
  if (membership_.CountWorkers(WorkerState::kMember) > 0 ||
      membership_.CountWorkers(WorkerState::kDeclared) > 0) {
    no_worker_since_ns_ = kNever;
    return;
  }
  if (membership_.CountWorkers(WorkerState::kDone) > 0) {
    EnterFinishing();
  } else if (no_worker_since_ns_ == kNever) {
    no_worker_since_ns_ = now_;
    LogLine(Log::Level::kWarning,
            Text("no worker is left (worker ", last_gone_, "); waiting for a replacement for ",
                 Seconds(options_.replacement_timeout_ns)));
  }
}

void CoordinatorState::AdmitWaiting() {
  bool admitted = false;
  for (auto& [rank, worker] : membership_.workers()) {
    // Until every shard has dropped the rank's last life, that life's updates may still rise.
    if (worker.state != WorkerState::kDeclared || !ShardsAt(worker.removed_view)) continue;
    worker.first_clock = FirstClockFor(worker);
    worker.state = WorkerState::kMember;
    worker.admitted_view = view_version_ + 1;
    admitted = true;
    LogLine(Log::Level::kInfo, Text("worker ", rank, " (life ", worker.incarnation,
                                    ") joins the training at step ", worker.first_clock));
  }
  if (admitted) PublishView();
}

Clock CoordinatorState::FirstClockFor(const WorkerRecord& joiner) const {
  Clock first = std::max(map_.first_clock(), joiner.highest_ever + 1);
  if (HasExactRounds(*job_)) {
    // Above every round that may be closed by the time the shards have the view.
    first = std::max(first, HighestClock() + Lead());
  } else {
    Clock slowest = kNever;
    for (const auto& [rank, worker] : membership_.workers()) {
      if (worker.state != WorkerState::kMember) continue;
      slowest = std::min(slowest, std::max(worker.highest, worker.first_clock));
    }
    if (slowest != kNever) first = std::max(first, slowest);
  }
  return std::min<Clock>(first, job_->steps());  // Nothing is left to train: it only says goodbye.
}

void CoordinatorState::StartMembers() {
  for (auto& [rank, worker] : membership_.workers()) {
    if (worker.state != WorkerState::kMember || worker.started) continue;
    if (!ShardsAt(worker.admitted_view)) continue;
    worker.started = true;
    SendView(worker.connection);
    SendMap(worker.connection);
  }
}

void CoordinatorState::ReleaseBarriers() {
  for (const Barriers::Release& release : barriers_.Collect(membership_.Members())) {
    control::Envelope envelope;
    envelope.mutable_barrier_release()->set_name(release.name);
    const ConnectionId connection = membership_.worker(release.worker).connection;
    if (release.request_id == 0) {
      SendTo(connection, std::move(envelope));
    } else {
      Answer(connection, release.request_id, std::move(envelope));
    }
  }
}

void CoordinatorState::StartDueCheckpoint() {
  // A shard cannot cut what nobody has given it yet.
  const bool initialised = std::all_of(shards_.begin(), shards_.end(), [](const ShardState& shard) {
    return shard.report.chunks_initialised() >= shard.chunks;
  });
  if (!initialised) return;
  if (!checkpoints_->StartDue(SlowestClock(), HighestClock(), Lead())) return;
  const CheckpointPlan& plan = checkpoints_->plan();
  outputs_.push_back(PrepareCheckpoint{plan.id, plan.directory});
}

void CoordinatorState::AbandonCheckpoint(const std::string& reason) {
  const Clock steps = checkpoints_->plan().clock + 1;
  const std::string directory = checkpoints_->Abandon(reason);
  LogLine(Log::Level::kError, Text("the checkpoint at step ", steps, " was given up: ", reason));
  outputs_.push_back(DiscardCheckpoint{directory});
}

void CoordinatorState::RemoveWorker(WorkerId rank, WorkerState state, bool retire,
                                    const std::string& why) {
  WorkerRecord& worker = membership_.worker(rank);
  const bool was_member = worker.state == WorkerState::kMember;
  const ConnectionId connection = worker.connection;
  last_gone_ = Text(rank, " (", worker.Place(), ") ", why);
  LogLine(state == WorkerState::kDone ? Log::Level::kInfo : Log::Level::kWarning,
          "worker " + last_gone_);
  membership_.VacateWorker(rank, state, retire);
  barriers_.Forget(rank);
  const size_t ranges = data_leases_ ? data_leases_->Reclaim(rank) : 0;
  if (ranges > 0 && state != WorkerState::kDone) {
    LogLine(Log::Level::kInfo,
            Text(Plural(ranges, "data lease"), " of worker ", rank, " will go to others"));
  }
  if (!was_member) return;
  PublishView();
  worker.removed_view = view_version_;
  if (state != WorkerState::kDone) SendView(connection);  // If it lives, it learns of it.
}

void CoordinatorState::ExpireLeases() {
  const std::string why = Text("is gone: its lease of ", Seconds(options_.lease_ns), " ran out");
  for (const Membership::Holder& holder : membership_.Expired(now_)) {
    if (phase_ >= JobPhase::kEnding) return;
    if (holder.role == Role::kServer) {
      LoseServer(holder.index, why);
    } else {
      // Before training a process that was only slow may register again.
      RemoveWorker(holder.index, WorkerState::kVacant, phase_ != JobPhase::kGathering, why);
    }
  }
}

void CoordinatorState::LoseServer(uint32_t id, const std::string& why) {
  const ServerRecord& server = membership_.servers()[id];
  const std::string who = Text("server ", id, " (", server.Place(), ") ", why);
  const size_t count = server.addresses.size();
  const uint32_t first = server.first_shard;
  membership_.VacateServer(id);
  if (phase_ >= JobPhase::kEnding) return;
  if (phase_ == JobPhase::kGathering) {
    LogLine(Log::Level::kWarning, who);
    return;
  }
  const std::string lost = count == 1 ? Text("shard ", first, " is")
                                      : Text("shards ", first, "..", first + count - 1, " are");
  // Before training nothing is lost yet; and a checkpoint that cannot be read is no way on.
  Fail(phase_ == JobPhase::kPlacing ? who : Text(who, "; ", lost, " lost with it. ", ResumeHint()));
}

std::string CoordinatorState::ResumeHint() const {
  if (!checkpoints_ || checkpoints_->last_target().empty()) {
    return "No checkpoint was taken; the job has to start again";
  }
  return "Go on from " + checkpoints_->last_target() + " with --resume";
}

// ---- The end ----

void CoordinatorState::EnterFinishing() {
  phase_ = JobPhase::kFinishing;
  phase_since_ns_ = now_;
  LogLine(Log::Level::kInfo, "all workers are done");
}

void CoordinatorState::AdvanceFinishing() {
  // An attempt on its way comes to its end first; its bound is CheckDeadline's.
  if (checkpoints_->phase() != Checkpoints::Phase::kIdle) return;
  const bool was_final = checkpoints_->plan().final;
  if (was_final && checkpoints_->last_target() != checkpoints_->plan().target) {
    Fail("the final checkpoint failed: " + checkpoints_->last_error());
    return;
  }
  const Clock clock =
      std::min<Clock>(std::max(HighestClock(), metrics_.highest_clock()), job_->steps() - 1);
  if (!was_final && checkpoints_->StartFinal(clock, now_)) {
    outputs_.push_back(PrepareCheckpoint{checkpoints_->plan().id, checkpoints_->plan().directory});
    return;
  }
  Succeed();
}

void CoordinatorState::Succeed() {
  outputs_.push_back(WriteRunFile{"summary.json", SummaryJson()});
  if (!final_.sample.empty()) outputs_.push_back(WriteRunFile{"sample.txt", final_.sample});
  LogLine(Log::Level::kInfo, "the job is complete");
  End(0, "the job is complete");
}

void CoordinatorState::Fail(const std::string& reason) {
  LogLine(Log::Level::kError, "the job has failed: " + reason);
  End(1, reason);
}

void CoordinatorState::End(int exit_code, const std::string& reason) {
  if (checkpoints_ && checkpoints_->phase() != Checkpoints::Phase::kIdle) {
    outputs_.push_back(DiscardCheckpoint{checkpoints_->Abandon("the job ended")});
  }
  phase_ = JobPhase::kEnding;
  phase_since_ns_ = now_;
  exit_code_ = exit_code;
  end_reason_ = reason;
  // Before anyone is told to go: whoever watches the processes can tell an end from a death.
  outputs_.push_back(WriteRunFile{"status.json", StatusJson(now_)});
  control::Envelope envelope;
  envelope.mutable_shutdown()->set_reason(reason);
  envelope.mutable_shutdown()->set_failed(exit_code != 0);
  for (const ServerRecord& server : membership_.servers()) SendTo(server.connection, envelope);
  for (const auto& [rank, worker] : membership_.workers()) SendTo(worker.connection, envelope);
}

void CoordinatorState::CheckBounds() {
  if (phase_ == JobPhase::kGathering || phase_ == JobPhase::kPlacing) {
    const std::vector<std::string> waiting = WaitingFor();
    const TimeNs waited = now_ - phase_since_ns_;
    if (waited >= options_.start_timeout_ns) {
      Fail(Text("gave up after ", Seconds(waited),
                " of waiting (--start_timeout_s): ", Join(waiting)));
    } else if (now_ >= next_wait_report_ns_) {
      next_wait_report_ns_ = now_ + kWaitReportInterval;
      LogLine(Log::Level::kInfo, Text("waiting (", Seconds(waited), " of ",
                                      Seconds(options_.start_timeout_ns), "): ", Join(waiting)));
    }
  }
  if (no_worker_since_ns_ != kNever && phase_ == JobPhase::kRunning &&
      now_ - no_worker_since_ns_ >= options_.replacement_timeout_ns) {
    Fail(Text("no worker is left and none came to replace them within ",
              Seconds(options_.replacement_timeout_ns), "; the last: worker ", last_gone_, ". ",
              ResumeHint()));
  }
  if (!checkpoints_ || phase_ >= JobPhase::kEnding) return;
  // Once all workers are done, no clock is still to come.
  const Clock highest = phase_ == JobPhase::kFinishing ? kMaxSteps : HighestClock();
  const Status late = checkpoints_->CheckDeadline(highest, now_);
  if (!late.ok()) AbandonCheckpoint(late.message());
}

}  // namespace slackline::server::coordinator
