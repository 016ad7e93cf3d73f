// Hands ranges of the sample space to workers, one holder at a time (SSP and ASP; under BSP samples
// are a function of the clock).
//
// The space is gone through pass by pass: [0, samples) of pass 0, then of pass 1, ... A range whose
// holder dies or leaves goes to the next who asks, before any new one, so that a pass misses
// nothing.
// Threading: owner thread: the coordinator's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::server::coordinator {

class DataLeases {
 public:
  // `range_samples` 0 or `samples` 0: the job leases no data, and Take says so.
  DataLeases(uint64_t samples, uint32_t range_samples)
      : samples_(samples), range_samples_(range_samples) {}

  // Up to `count` ranges for the worker. FailedPrecondition: the job has no samples.
  // InvalidArgument: count is 0 or above its bound. ResourceExhausted: the worker holds too many.
  Result<control::DataLease> Take(WorkerId worker, uint32_t count);

  // The worker is through with these ranges. Ids that it does not hold are ignored: a resend, or a
  // range that was taken from it.
  void Finish(WorkerId worker, const google::protobuf::RepeatedField<uint64_t>& lease_ids);

  // The worker died or left: what it holds goes to others first. Returns the number of ranges.
  size_t Reclaim(WorkerId worker);

  size_t held() const { return held_.size(); }
  size_t returned() const { return returned_.size(); }
  uint64_t pass() const { return pass_; }
  uint64_t position() const { return position_; }  // Next new sample of the pass.

 private:
  struct Holding {
    WorkerId worker = 0;
    control::DataLease::Range range;
  };

  control::DataLease::Range NextRange();

  const uint64_t samples_;
  const uint32_t range_samples_;
  uint64_t pass_ = 0;
  uint64_t position_ = 0;
  uint64_t next_lease_id_ = 1;
  std::map<uint64_t, Holding> held_;  // By lease id, so that reclaimed ranges keep their order.
  std::map<WorkerId, size_t> held_by_worker_;
  std::deque<control::DataLease::Range> returned_;
};

}  // namespace slackline::server::coordinator
