// The coordinator as a pure state machine: messages and time in, outputs out.
//
// It gathers servers and workers, agrees on job and model, places chunks on shards, keeps the
// membership view, and ends the job. It does no I/O, reads no clock and has no threads, so that
// tests and simulations drive it with time of their own; coordinator_process.h is its shell.
//
//   gathering  -> all servers and workers are here and the model is declared
//   placing    -> every shard applied the map and the first view (and restored its chunks)
//   running    -> all members have left done
//   finishing  -> the final checkpoint is committed
//   ending     -> Shutdown was sent; the others go, then the process exits
// Any phase but the last goes to `ending` when the job fails or is interrupted.
//
// Threading: owner thread: the coordinator's. `now` never goes back.
// Errors: a peer's message is never an error of this object; it is answered with one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "server/coordinator/barriers.h"
#include "server/coordinator/checkpoints.h"
#include "server/coordinator/data_leases.h"
#include "server/coordinator/job.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/outputs.h"
#include "server/coordinator/run_metrics.h"

namespace slackline::server::coordinator {

// A checkpoint to go on from, as its manifest has it.
struct RestorePoint {
  std::string directory;
  Clock clock = kNoClock;  // The cut: training goes on with the clock after it.
  control::JobSpec job;
  Tensors tensors;
  std::vector<control::Chunk> chunks;  // Chunk.shard is not used.
};

struct CoordinatorOptions {
  std::string run_id;
  uint32_t expected_servers = 1;
  uint32_t expected_workers = 1;
  TimeNs lease_ns = 5 * kNsPerSecond;
  TimeNs start_timeout_ns = 60 * kNsPerSecond;        // For gathering, and again for placing.
  TimeNs replacement_timeout_ns = 30 * kNsPerSecond;  // How long a job lives without any worker.
  std::string checkpoint_directory;                   // Empty: no checkpoints.
  TimeNs checkpoint_timeout_ns = 120 * kNsPerSecond;
  std::optional<RestorePoint> restore;
};

enum class JobPhase : uint8_t { kGathering, kPlacing, kRunning, kFinishing, kEnding, kEnded };
std::string_view JobPhaseName(JobPhase phase);

class CoordinatorState {
 public:
  CoordinatorState(CoordinatorOptions options, TimeNs now);

  Outputs OnMessage(ConnectionId connection, const control::Envelope& message, TimeNs now);
  Outputs OnDisconnected(ConnectionId connection, TimeNs now);
  // To be called at least every kOwnStall / 2: leases, bounds, reports of what is waited for.
  Outputs OnTick(TimeNs now);
  Outputs OnCheckpointPrepared(uint64_t id, const Status& status, TimeNs now);
  Outputs OnCheckpointCommitted(uint64_t id, const Status& status, TimeNs now);
  // Ends the job before its time (a signal).
  Outputs OnInterrupt(const std::string& reason, TimeNs now);

  // The status page; its form is described in status_page.cc.
  std::string StatusJson(TimeNs now) const;
  // What cannot go on without what; empty if nothing is waited for.
  std::vector<std::string> WaitingFor() const;

  JobPhase phase() const { return phase_; }
  const std::string& run_id() const { return options_.run_id; }
  uint64_t view_version() const { return view_version_; }
  const control::ShardMap& shard_map() const { return map_; }
  const Membership& membership() const { return membership_; }

 private:
  struct ShardState {
    uint32_t server = 0;
    uint64_t chunks = 0;  // By the map.
    control::ShardReport report;
  };
  struct FinalResult {
    std::optional<double> validation_loss;
    std::string sample;
  };

  // ---- Messages: coordinator_messages.cc ----
  Status Dispatch(ConnectionId connection, const control::Envelope& message);
  Status DispatchMember(ConnectionId connection, const control::Envelope& message);
  Status OnRegisterServer(ConnectionId connection, const control::Envelope& message);
  Status OnRegisterWorker(ConnectionId connection, const control::Envelope& message);
  Status AgreeOnJob(WorkerId rank, const control::JobSpec& job);
  Status AdoptJob(const control::JobSpec& job);
  Status OnDeclareModel(WorkerRecord* worker, const control::DeclareModel& model);
  Status AdoptModel(const Tensors& tensors);
  Status OnHeartbeat(const Membership::Holder& holder, const control::Heartbeat& heartbeat);
  void OnShardReport(uint32_t server, const control::ShardReport& report);
  void OnLeave(const Membership::Holder& holder, const control::Leave& leave);
  Status OnBarrierArrive(ConnectionId connection, const WorkerRecord& worker,
                         const control::Envelope& message);
  Status OnDataLeaseRequest(ConnectionId connection, const WorkerRecord& worker,
                            const control::Envelope& message);
  Status OnCheckpointShardDone(uint32_t server, const control::CheckpointShardDone& report);
  Status OnFinalReport(const WorkerRecord& worker, const control::FinalReport& report);

  // ---- Phases: coordinator_phases.cc ----
  void Advance();  // Goes on as far as the state allows; called after every event.
  void AdvanceGathering();
  void AdvancePlacing();
  void AdvanceRunning();
  void AdvanceFinishing();
  void EnterPlacing();
  void EnterFinishing();
  void AdmitWaiting();
  Clock FirstClockFor(const WorkerRecord& joiner) const;
  void StartMembers();
  void ReleaseBarriers();
  void StartDueCheckpoint();
  void AbandonCheckpoint(const std::string& reason);
  void RemoveWorker(WorkerId rank, WorkerState state, bool retire, const std::string& why);
  void ExpireLeases();
  void LoseServer(uint32_t id, const std::string& why);
  void Succeed();
  void Fail(const std::string& reason);
  void End(int exit_code, const std::string& reason);
  void CheckBounds();  // Of the present phase.

  // ---- Sending ----
  void SendTo(ConnectionId connection, control::Envelope envelope);
  void Answer(ConnectionId connection, uint64_t request_id, control::Envelope envelope);
  void Refuse(ConnectionId connection, uint64_t request_id, const Status& status);
  void SendRegistered(ConnectionId connection, uint64_t request_id, uint32_t id,
                      Incarnation incarnation, uint32_t first_shard);
  void SendView(ConnectionId connection);
  void SendMap(ConnectionId connection);
  void SendTakeCheckpoint(const ServerRecord& server);
  void PublishView();
  void LogLine(Log::Level level, std::string text);

  // ---- Looking ----
  bool Placed() const { return phase_ >= JobPhase::kPlacing && map_.epoch() != 0; }
  bool ShardsAt(uint64_t view_version) const;
  Clock SlowestClock() const;  // Every chunk has all members' updates up to it.
  Clock HighestClock() const;  // That any chunk has seen of anyone.
  Clock Lead() const;          // Clocks that may have passed since shards reported.
  std::vector<ShardIndex> ShardsWithChunks() const;
  std::string SummaryJson() const;
  std::string ResumeHint() const;
  TimeNs HeartbeatInterval() const;
  Outputs Take();
  void Enter(TimeNs now);  // Every event begins with it.

  const CoordinatorOptions options_;
  const TimeNs start_ns_;
  TimeNs now_ = 0;
  Outputs outputs_;

  JobPhase phase_ = JobPhase::kGathering;
  TimeNs phase_since_ns_ = 0;
  TimeNs next_wait_report_ns_ = 0;
  TimeNs next_status_ns_ = 0;
  TimeNs no_worker_since_ns_ = kNever;
  int exit_code_ = 0;
  std::string end_reason_;
  int64_t refusal_second_ = 0;
  size_t refusals_in_second_ = 0;
  uint64_t refusals_ = 0;
  std::string last_gone_;  // Why the last worker went: for the message when none is left.

  Membership membership_;
  std::optional<control::JobSpec> job_;
  Tensors tensors_;
  std::vector<control::Chunk> chunks_;  // Of the declared model; without shards until placing.
  control::ShardMap map_;
  uint64_t view_version_ = 0;
  std::vector<ShardState> shards_;

  Barriers barriers_;
  std::optional<DataLeases> data_leases_;
  std::optional<Checkpoints> checkpoints_;  // Once the job is known.
  RunMetrics metrics_;
  FinalResult final_;
};

}  // namespace slackline::server::coordinator
