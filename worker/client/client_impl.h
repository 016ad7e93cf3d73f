// The Client: a ControlSession for the coordinator, an IoLoop for the shards, and the memory
// between them. See client.h for the contract.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/codec/chunk_codec.h"
#include "common/mutex.h"
#include "common/time_source.h"
#include "worker/client/client.h"
#include "worker/client/control_session.h"
#include "worker/client/io_loop.h"
#include "worker/client/model_space.h"

namespace slackline::worker {

class ClientImpl final : public Client {
 public:
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~ClientImpl() override;

  WorkerId rank() const override { return session_->registered().id(); }
  Incarnation incarnation() const override { return session_->registered().incarnation(); }
  uint32_t expected_workers() const override { return session_->registered().expected_workers(); }
  const control::JobSpec& job() const override { return session_->registered().job(); }
  const std::string& run_id() const override { return session_->registered().run_id(); }

  Status Declare(std::vector<TensorSpec> tensors) override;
  const control::ShardMap& shard_map() const override { return map_; }
  Clock first_clock() const override { return first_clock_; }
  std::span<float> weights() override { return weights_; }
  std::span<float> gradients() override { return gradients_; }
  std::span<const float> residual() const override { return residual_; }
  std::span<float> tensor_weights(size_t tensor) override { return Part(weights_, tensor); }
  std::span<float> tensor_gradients(size_t tensor) override { return Part(gradients_, tensor); }
  std::span<const ChunkIndex> tensor_chunks(size_t tensor) const override {
    return space_.tensor_chunks(tensor);
  }
  std::span<const ChunkIndex> chunk_order() const override { return space_.chunk_order(); }

  Status Initialize() override;

  Status BeginStep(Clock clock, const StepOptions& options) override;
  Status PushPull(ChunkIndex chunk, bool empty) override;
  Status WaitChunk(ChunkIndex chunk) override;
  Result<StepStats> FinishStep() override;
  Status PullAll() override;

  Status Barrier(const std::string& name, TimeNs timeout_ns) override;
  bool lowest_live_rank() const override { return session_->lowest_live_rank(); }
  Result<control::DataLease> LeaseData(uint32_t count) override;
  Status FinishData(const std::vector<uint64_t>& lease_ids) override;
  void Report(const control::StepReport& report) override { session_->Report(report); }
  Status ReportFinal(const control::FinalReport& report) override;
  Status Leave(bool done, const std::string& reason) override;
  void Cancel(const std::string& reason) override;

 private:
  // Where a chunk is in the step.
  enum class ChunkState : uint8_t {
    kNotPushed,
    kPushed,
    kCollected,  // Its weights are in weights_, or its error was returned.
  };

  explicit ClientImpl(const ClientOptions& options) : options_(options) {}

  void OnEnded(const Status& status);
  void OnMap(const control::ShardMap& map);
  Status CheckCodecs();
  Status StartIo();
  Status AllocateMemory();
  Status AllocateWires();
  Result<std::span<std::byte>> AllocateBytes(size_t size_bytes);
  Result<std::span<float>> AllocateFloats();
  std::span<float> Part(std::span<float> all, size_t tensor) const;
  std::span<float> Part(std::span<float> all, ModelSpace::Range range) const;

  // client_step.cc
  MutableBytes PushBytes(ChunkIndex chunk) const;
  void WantWeights(ChunkIndex chunk, ChunkRequest* request) const;
  ConstBytes Encode(ChunkIndex chunk);
  Status Decode(const ChunkResult& result);
  Status BadWeights(ChunkIndex chunk, size_t element) const;
  Status DecodeSteps(const ChunkResult& result);
  Status Collect(ChunkIndex chunk);
  Status StatusOf(const ChunkResult& result) const;
  void Count(const ChunkResult& result);
  void TakeBack(const ChunkResult& result);

  // client_init.cc
  Status Offer(const std::vector<ChunkIndex>& chunks);
  Status Pull(const std::vector<ChunkIndex>& chunks, Clock clock,
              std::vector<ChunkIndex>* not_initialised);

  const ClientOptions options_;
  const SteadyTimeSource time_;
  std::unique_ptr<ControlSession> session_;
  CodecPlan push_plan_;
  CodecPlan pull_plan_;
  control::ShardMap map_;
  ModelSpace space_;
  Clock first_clock_ = 0;

  Mutex io_mutex_;
  // What callbacks of the session reach the loop by; null until it exists.
  IoLoop* live_io_ SLACKLINE_GUARDED_BY(io_mutex_) = nullptr;
  std::optional<control::ShardMap> early_map_ SLACKLINE_GUARDED_BY(io_mutex_);

  std::unique_ptr<IoLoop> io_;
  std::vector<std::unique_ptr<transport::Region>> regions_;  // After io_: freed before it.
  std::span<float> weights_;
  std::span<float> gradients_;
  // A chunk's codecs, and its bytes as they travel: the memory above with fp32, whose wire form it
  // is.
  struct ChunkWire {
    ChunkCodec push_codec;
    ChunkCodec pull_codec;
    MutableBytes push;
    MutableBytes pull;
  };
  std::vector<ChunkWire> wires_;
  // What lossy pushes dropped, without loss scale; empty if the push codec has no residual.
  std::span<float> residual_;
  // Lossy pull codec: the servers' published reference, by which steps to later versions are made;
  // else empty. The training loop may change weights_, never this.
  std::span<float> reference_;
  std::span<float> velocity_;  // Momentum at the worker, without loss scale; else empty.

  bool step_open_ = false;
  Clock clock_ = 0;  // Of the open step, or the next one.
  StepOptions step_;
  StepStats stats_;
  std::vector<ChunkState> chunk_states_;
};

}  // namespace slackline::worker
