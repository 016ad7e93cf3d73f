// Samples by data leases (SSP, ASP): ranges of positions that the coordinator gives to this worker
// alone. Ranges are fetched ahead by a thread of their own, so that a coordinator that restarts is
// not felt until everything fetched is used up.
//
// Threading: Next() belongs to the data thread; Finish() and Stop() may be called from any thread.
// Ownership: the broker must outlive this object. The destructor waits for the broker call that is
// under way, so a broker that cannot answer must be cancelled first.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/thread_annotations.h"
#include "proto/control.pb.h"
#include "worker/data/sample_source.h"

namespace slackline::worker {

// Where leases come from: the client, or a test's stand-in. Called on the lease thread only.
class LeaseBroker {
 public:
  virtual ~LeaseBroker() = default;
  // Up to `count` ranges; none when there are none at the moment.
  virtual Result<control::DataLease> Lease(uint32_t count) = 0;
  virtual Status Finish(const std::vector<uint64_t>& lease_ids) = 0;
};

class LeaseSource final : public SampleSource {
 public:
  // Ranges fetched ahead of the data thread.
  static constexpr size_t kRangesAhead = 8;

  LeaseSource(SampleOrder order, uint64_t batch, LeaseBroker& broker);
  ~LeaseSource() override;

  // Waits for a range. Aborted after Stop(); the broker's error if it failed.
  Result<bool> Next(MicroBatch& out) override;

  // The samples of these leases are in the servers' weights (their steps were answered).
  void Finish(std::span<const uint64_t> lease_ids);
  void Stop();

 private:
  void LeaseLoop();
  // The lease thread's next piece of work; false: stop.
  bool WaitForWork(std::vector<uint64_t>& finished, size_t& wanted);
  Result<control::DataLease::Range> TakeRange();

  SampleOrder order_;
  const uint64_t batch_;
  LeaseBroker& broker_;
  control::DataLease::Range range_;  // The data thread's: being used up.
  uint64_t next_ = 0;                // Position in range_.

  Mutex mutex_;
  CondVar changed_;
  std::deque<control::DataLease::Range> ranges_ SLACKLINE_GUARDED_BY(mutex_);
  std::vector<uint64_t> finished_ SLACKLINE_GUARDED_BY(mutex_);
  Status status_ SLACKLINE_GUARDED_BY(mutex_);
  bool stopped_ SLACKLINE_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace slackline::worker
