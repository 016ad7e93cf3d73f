#include "server/coordinator/data_leases.h"

#include <algorithm>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {

Result<control::DataLease> DataLeases::Take(WorkerId worker, uint32_t count) {
  if (samples_ == 0 || range_samples_ == 0) {
    return Err(FailedPrecondition(
        "the job has no samples to lease (JobSpec.train_samples or lease_samples is 0)"));
  }
  if (count == 0 || count > kMaxRangesPerRequest) {
    return Err(InvalidArgument(
        Text("a data lease request for ", count, " ranges: expected 1..", kMaxRangesPerRequest)));
  }
  size_t& holds = held_by_worker_[worker];
  if (holds + count > kMaxRangesPerWorker) {
    return Err(ResourceExhausted(Text("worker ", worker, " holds ", holds,
                                      " data leases and asks for ", count, " more: at most ",
                                      kMaxRangesPerWorker, " may be open; report some as done")));
  }
  control::DataLease lease;
  for (uint32_t i = 0; i < count; ++i) {
    control::DataLease::Range range = NextRange();
    range.set_lease_id(next_lease_id_++);
    held_[range.lease_id()] = {worker, range};
    *lease.add_ranges() = std::move(range);
  }
  holds += count;
  return lease;
}

control::DataLease::Range DataLeases::NextRange() {
  if (!returned_.empty()) {
    control::DataLease::Range range = std::move(returned_.front());
    returned_.pop_front();
    return range;
  }
  control::DataLease::Range range;
  range.set_pass(pass_);
  range.set_begin(position_);
  position_ += std::min<uint64_t>(range_samples_, samples_ - position_);
  range.set_end(position_);
  if (position_ == samples_) {
    position_ = 0;
    ++pass_;
  }
  return range;
}

void DataLeases::Finish(WorkerId worker,
                        const google::protobuf::RepeatedField<uint64_t>& lease_ids) {
  for (const uint64_t id : lease_ids) {
    const auto holding = held_.find(id);
    if (holding == held_.end() || holding->second.worker != worker) continue;
    held_.erase(holding);
    --held_by_worker_[worker];
  }
}

size_t DataLeases::Reclaim(WorkerId worker) {
  size_t count = 0;
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->second.worker != worker) {
      ++it;
      continue;
    }
    returned_.push_back(std::move(it->second.range));
    it = held_.erase(it);
    ++count;
  }
  held_by_worker_.erase(worker);
  return count;
}

}  // namespace slackline::server::coordinator
