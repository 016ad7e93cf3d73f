// The client's I/O thread: it owns the endpoint and the core, takes requests from the training
// thread and hands results back, one slot a chunk.
//
// Threading: Allocate and Start before anything else, on one thread. Submit, Done and Wait belong
// to one thread, the training thread. Update and End are thread-safe. Events go to the two
// functions of Options, on the I/O thread.
// Ownership: payload and landing memory come from Allocate; regions must be freed before the loop
// goes, so hold them after it.
// Allocation: Submit, Done and Wait allocate nothing unless they fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/time_source.h"
#include "transport/factory.h"
#include "transport/transport.h"
#include "worker/client/client_core.h"
#include "worker/client/spsc_ring.h"

namespace slackline::worker {

class IoLoop final : private CoreEvents {
 public:
  struct Options {
    CoreOptions core;
    std::string transport = "tcp";
    transport::EndpointOptions endpoint = {};
    std::function<void(const std::string&)> on_wait;  // A line about a wait or a lost link.
    std::function<void(const Status&)> on_failed;     // Once: no request will be answered any more.
  };

  static Result<std::unique_ptr<IoLoop>> Create(Options options);
  ~IoLoop() override;  // Ends everything and joins.

  // Memory for payloads and landings.
  Result<std::unique_ptr<transport::Region>> Allocate(size_t size_bytes);
  // Connects to the map's shards and starts the thread.
  void Start(const CoreMap& map);
  // Waits until every link is open. DeadlineExceeded names the last error; Aborted after End.
  Status WaitOpen(TimeNs timeout_ns);

  // Hands a request over; its chunk must have none open (a bug of the caller otherwise).
  void Submit(const ChunkRequest& request);
  // Whether the chunk's request was answered, or never will be: Wait returns at once.
  bool Done(ChunkIndex chunk) const;
  // Waits for the chunk's answer; at most the core's stall_timeout_ns. The end's status otherwise.
  Status Wait(ChunkIndex chunk, ChunkResult* result);

  void Update(const CoreMap& map);
  void End(const Status& status);
  // Ends and joins: afterwards no memory is touched any more. Called once, by the owner.
  void Stop();
  // OK until the end.
  Status end_status() const;
  const transport::EndpointStats& endpoint_stats() const { return endpoint_->stats(); }

 private:
  enum WorkState : uint32_t { kIdle, kPending, kAnswered, kDropped };
  // A chunk's request on its way there and back. The side that moves `state` owns the rest.
  struct Work {
    ChunkRequest request;
    ChunkResult result;
    std::atomic<uint32_t> state{kIdle};
  };

  IoLoop(Options options, std::unique_ptr<transport::Endpoint> endpoint);

  // On the I/O thread.
  void Run();
  void TakeRequests();
  void TakeOrders();
  void Deliver(Work& work, WorkState state);
  void OnChunkDone(const ChunkResult& result) override;
  void OnAllOpen() override;
  void OnLinkLost(ShardIndex shard, uint32_t attempts, const Status& status) override;
  void OnWaiting(const std::string& line) override;
  void OnChunkDropped(ChunkIndex chunk) override;
  void OnFailed(const Status& status) override;

  void WakeLoop();

  const Options options_;
  const SteadyTimeSource time_;
  const std::unique_ptr<transport::Endpoint> endpoint_;
  std::unique_ptr<ClientCore> core_;  // The I/O thread's, once it runs.
  std::vector<Work> work_;            // By chunk.
  std::unique_ptr<SpscRing<ChunkIndex>> submitted_;
  // True while the I/O thread sleeps or is about to: who gives it work must wake it.
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> orders_waiting_{false};
  std::atomic<bool> stop_{false};

  mutable Mutex mutex_;
  CondVar changed_;
  bool all_open_ SLACKLINE_GUARDED_BY(mutex_) = false;
  Status last_loss_ SLACKLINE_GUARDED_BY(mutex_);
  Status end_ SLACKLINE_GUARDED_BY(mutex_);
  std::optional<CoreMap> new_map_ SLACKLINE_GUARDED_BY(mutex_);

  Thread thread_;  // Last: it uses everything above.
};

}  // namespace slackline::worker
