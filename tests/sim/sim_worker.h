// One life of a worker process under the simulator: the real client core over a simulated endpoint,
// and a training loop that only counts.
//
// It registers, declares its model, waits for the map, brings the initial weights, then pushes and
// pulls every chunk once a clock until the last, checks everything it reads against the ledger, and
// says goodbye.
// Threading: the network's thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/codec/chunk_codec.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/ledger.h"
#include "tests/sim/sim_process.h"
#include "transport/sim/sim_endpoint.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

struct SimWorkerOptions {
  int32_t wanted_rank = -1;
  control::JobSpec job;
  std::vector<control::TensorSpec> tensors;
  TimeNs think_max_ns = 5 * kNsPerMs;  // Between the answers of a clock and the next pushes.
  double empty_chance = 0;
  bool report_steps = true;  // To the coordinator, which then knows how fast clocks pass.
  bool reduce = false;       // BSP: a round of kReduce before every push.
};

class SimWorker final : public SimProcess,
                        private ControlPlane::Client,
                        private worker::CoreEvents {
 public:
  enum class Phase : uint8_t {
    kRegistering,
    kDeclaring,  // Until the view and the map are here.
    kInitialising,
    kTraining,
    kLeaving,
    kLeft,  // Said goodbye at its last clock.
    kGone,  // The job ended, or it was thrown out.
  };
  // What others may be promised of this life: it is a member on every shard since then.
  struct Membership {
    WorkerId worker = 0;
    Incarnation incarnation = 0;
    Clock first_clock = 0;
    TimeNs since_ns = kNever;
  };

  // `others` gives the lives whose updates a read must hold, by the bound.
  SimWorker(transport::SimNetwork& network, ControlPlane& control, Ledger& ledger,
            const SimWorkerOptions& options, std::function<std::vector<Membership>()> others,
            std::string name, uint64_t seed);
  ~SimWorker() override;  // The process dies.

  Phase phase() const { return phase_; }
  bool ended() const { return phase_ == Phase::kLeft || phase_ == Phase::kGone; }
  // Nullopt until it may push.
  const std::optional<Membership>& membership() const { return membership_; }
  Clock clock() const { return clock_; }
  // Of the answers to its pushes: the longest wait, and the largest staleness.
  TimeNs longest_wait_ns() const { return longest_wait_ns_; }
  Clock largest_staleness() const { return largest_staleness_; }
  const worker::CoreStats& stats() const { return stats_; }
  const std::vector<std::string>& errors() const { return errors_; }
  std::string Describe() const;

 private:
  struct ChunkState {
    size_t count = 0;
    ChunkCodec push_codec;
    MutableBytes gradient, landing;
    std::vector<float> decoded;
    enum class Step : uint8_t { kIdle, kInit, kPull, kReduce, kPush } step = Step::kIdle;
    Clock clock = 0;
    bool empty = false;
    bool took_part = false;  // A push of this life was applied.
    TimeNs asked_ns = 0;
    TimeNs retry_ns = kNever;  // Ask for the initial weights again.
  };

  void Turn() override;
  void OnControl(const control::Envelope& message) override;
  void OnControlLost() override;
  void OnChunkDone(const worker::ChunkResult& result) override;
  void OnFailed(const Status& status) override;

  // ---- sim_worker_control.cc
  void Register();
  void Handle(const control::Envelope& message);
  void OnRegistered(const control::Registered& registered);
  void OnView(const control::View& view);
  void OnMap(const control::ShardMap& map);
  void Heartbeat();
  void Leave();
  void SendControl(control::Envelope message);

  // ---- sim_worker.cc
  void MakeBuffers(const control::ShardMap& map);
  void SubmitInit(ChunkIndex chunk);
  void SubmitPull(ChunkIndex chunk);
  void BeginStep();
  void SubmitReduce(ChunkIndex chunk);
  void SubmitPush(ChunkIndex chunk);
  float Contribution() const;
  void CheckAggregate(ChunkIndex chunk, const worker::ChunkResult& result);
  void FillGradient(ChunkIndex chunk);
  void CheckWeights(ChunkIndex chunk, const worker::ChunkResult& result, Clock reading);
  void ChunkFinished();
  void Submit(const worker::ChunkRequest& request);
  void End(Phase phase);
  void Wrong(std::string line);

  ControlPlane& control_;
  Ledger& ledger_;
  const SimWorkerOptions options_;
  const std::function<std::vector<Membership>()> others_;
  const CodecPlan push_plan_;
  const Codec& pull_codec_;

  Phase phase_ = Phase::kRegistering;
  ConnectionId connection_ = 0;
  std::deque<control::Envelope> inbox_;
  bool lost_ = false;
  TimeNs register_again_ns_ = kNever;
  TimeNs heartbeat_ns_ = kNever;
  TimeNs next_heartbeat_ns_ = kNever;
  uint64_t next_id_ = 1;
  uint64_t leave_id_ = 0;
  WorkerId rank_ = 0;
  Incarnation incarnation_ = 0;
  std::optional<Clock> first_clock_;  // From the view.
  std::vector<control::StepReport> steps_;

  std::unique_ptr<transport::SimEndpoint> endpoint_;
  std::vector<std::unique_ptr<transport::Region>> regions_;
  std::unique_ptr<worker::ClientCore> core_;
  worker::CoreStats stats_;
  std::vector<ChunkState> chunks_;
  size_t busy_chunks_ = 0;
  std::optional<Membership> membership_;
  Clock clock_ = 0;
  TimeNs initialising_since_ns_ = 0;
  TimeNs next_step_ns_ = kNever;
  TimeNs longest_wait_ns_ = 0;
  Clock largest_staleness_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace slackline::sim
