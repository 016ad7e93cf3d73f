// The library for people who bring their own training loop: join a cluster, declare tensors, push
// gradients and get weights back. It needs no libtorch and no CUDA.
//
//   auto client = Client::Connect(options);                 // waits for the coordinator
//   client->Declare({{"w", {784, 10}, true}, {"b", {10}, false}});
//   fill(client->weights());                                // this worker's initial values
//   client->Initialize();                                   // weights() now holds the cluster's
//   for (Clock c = client->first_clock(); c < steps; ++c) {
//     compute(client->weights(), client->gradients());      // sum over samples
//     client->BeginStep(c, {.weight = samples, .scale = 1});
//     for (ChunkIndex k : client->chunk_order()) client->PushPull(k);   // as they become ready
//     auto stats = client->FinishStep();                    // weights() now holds clock c + 1's
//   }
//   client->Leave(true);
//
// The flat spaces: tensors lie end to end in declaration order; tensor_span() gives a tensor's
// part. A push codec that loses much (int8, topk...) keeps what it drops in residual() and adds it
// to the next push; a push that was given up is in it again. With the fp32 codec gradients() and
// weights() are the very memory that the transport reads and writes; with another one PushPull
// encodes and WaitChunk decodes on the calling thread.
//
// Threading: one training thread calls everything but Cancel() and the data leases; I/O runs on the
// client's own thread. A chunk's weights change only inside WaitChunk/FinishStep for a lossy codec,
// and between PushPull(k) and WaitChunk(k) for fp32: do not read chunk k in between.
// Ownership: spans point into the client and live as long as it does.
// Errors: Unavailable and DeadlineExceeded name what was waited for. Aborted: the job was ended or
// this worker was removed from the view (its lease expired): start over as a new incarnation.
// A lost connection or a duplicate is not an error: the client reconnects and resends.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/codec/codec.h"
#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "transport/factory.h"

namespace slackline::worker {

struct ClientOptions {
  std::string coordinator;  // host:port
  std::string transport = "tcp";
  transport::EndpointOptions endpoint = {};
  // False: what a lossy push dropped is forgotten. It shows what the residual is for.
  bool error_feedback = true;
  // In [0, 1): of gradients, in front of a push codec with a residual, as in deep gradient
  // compression (common/codec/momentum.h). The job's optimizer is then sgd. The same at all
  // workers.
  double worker_momentum = 0;
  int32_t wanted_rank = -1;
  control::JobSpec job = {};
  TimeNs connect_timeout_ns = 15 * kNsPerSecond;         // Coordinator.
  TimeNs start_timeout_ns = 120 * kNsPerSecond;          // Until all servers and workers are there.
  TimeNs stall_timeout_ns = 60 * kNsPerSecond;           // A chunk without any answer.
  TimeNs stall_report_ns = 5 * kNsPerSecond;             // Then `on_wait` says what is waited for.
  size_t credit_bytes = 64u << 20;                       // In flight to one shard, not yet taken.
  std::function<void(const std::string&)> on_wait = {};  // A line for the log; any thread.
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // Every extent > 0.
  bool decay = true;           // Weight decay applies.
};

struct StepOptions {
  double weight = 1;   // Samples behind the gradient.
  float scale = 1;     // Loss scale inside gradients(): the pushed values are gradients() as is.
  bool empty = false;  // No gradient (overflow): clocks move, gradients() is not read.
};

// Chunks by staleness, ascending, in fixed memory: a step's counts allocate nothing. A value for
// which there is no room left counts as a larger one that has its place, never as a smaller one.
class StalenessCounts {
 public:
  using Entry = std::pair<Clock, uint64_t>;  // (staleness, chunks)
  static constexpr size_t kMaxEntries = 32;

  void Add(Clock staleness, uint64_t chunks = 1);
  const Entry* begin() const { return entries_.data(); }
  const Entry* end() const { return entries_.data() + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::array<Entry, kMaxEntries> entries_{};
  size_t size_ = 0;
};

struct StepStats {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;  // Payload bytes, without resends.
  uint64_t resends = 0;
  // Pushes that came too late for their round (a worker that was out for a while) or that the shard
  // refused: not applied; the weights are right all the same.
  uint64_t pushes_missed = 0;
  // For each pulled chunk: the reader's clock minus the slowest clock its weights include.
  StalenessCounts staleness;
  EncodeStats encode;
  TimeNs wait_ns = 0;  // The training thread stood still for weights.
};

class Client {
 public:
  // Registers with the coordinator. Errors: see above; InvalidArgument: the job differs from the
  // cluster's (names the field and both values).
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  virtual ~Client() = default;

  virtual WorkerId rank() const = 0;
  virtual Incarnation incarnation() const = 0;
  virtual uint32_t expected_workers() const = 0;
  virtual const control::JobSpec& job() const = 0;  // As the cluster has it.
  virtual const std::string& run_id() const = 0;

  // Declares the model; waits for all servers and workers and the shard map, then opens a channel
  // to every shard. InvalidArgument: another model than the cluster's (names the tensor).
  virtual Status Declare(std::vector<TensorSpec> tensors) = 0;
  virtual const control::ShardMap& shard_map() const = 0;
  virtual Clock first_clock() const = 0;  // First clock of this life; after Declare.
  virtual std::span<float> weights() = 0;
  virtual std::span<float> gradients() = 0;
  // What pushes in a lossy codec have dropped and later ones will carry, without loss scale; empty
  // if the push codec drops nothing that is kept. Stable between steps.
  virtual std::span<const float> residual() const { return {}; }
  virtual std::span<float> tensor_weights(size_t tensor) = 0;
  virtual std::span<float> tensor_gradients(size_t tensor) = 0;
  // Chunks that hold a part of the tensor.
  virtual std::span<const ChunkIndex> tensor_chunks(size_t tensor) const = 0;
  // Every chunk, in the order in which the next forward needs them.
  virtual std::span<const ChunkIndex> chunk_order() const = 0;

  // Offers weights() as initial values where a chunk has none, then pulls all chunks as first_clock
  // may see them.
  virtual Status Initialize() = 0;

  // A step: BeginStep, then PushPull once for every chunk in any order, then FinishStep.
  virtual Status BeginStep(Clock clock, const StepOptions& options) = 0;
  // `empty`: this chunk travels without its gradient although the step has one (an overflow that
  // backward found late empties the chunks that are left).
  virtual Status PushPull(ChunkIndex chunk, bool empty = false) = 0;
  // Waits until the chunk's new weights are in weights().
  virtual Status WaitChunk(ChunkIndex chunk) = 0;
  // Waits for all of them and closes the step.
  virtual Result<StepStats> FinishStep() = 0;

  // Pulls every chunk as it is now (evaluation); not part of a step.
  virtual Status PullAll() = 0;

  // ---- Through the coordinator ----
  virtual Status Barrier(const std::string& name, TimeNs timeout_ns) = 0;
  // True if no live worker of the present view has a lower rank: this one evaluates for all.
  virtual bool lowest_live_rank() const = 0;
  // Data leases (SSP, ASP): up to `count` sample ranges of this worker's own. LeaseData and
  // FinishData are thread-safe: the data thread calls them while the training thread trains; they
  // wait through a restart of the coordinator, until Cancel().
  virtual Result<control::DataLease> LeaseData(uint32_t count) = 0;
  virtual Status FinishData(const std::vector<uint64_t>& lease_ids) = 0;
  // For metrics.jsonl and the progress line; never blocks (bounded: the oldest are dropped,
  // counted).
  virtual void Report(const control::StepReport& report) = 0;
  virtual Status ReportFinal(const control::FinalReport& report) = 0;
  // Says goodbye; no call but the destructor may follow.
  virtual Status Leave(bool done, const std::string& reason) = 0;

  // Thread-safe: makes every waiting and later call return Aborted.
  virtual void Cancel(const std::string& reason) = 0;
};

}  // namespace slackline::worker
