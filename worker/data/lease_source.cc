#include "worker/data/lease_source.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/time_source.h"

namespace slackline::worker {
namespace {

// The pause before asking again when the coordinator had no range to give.
constexpr TimeNs kEmptyPauseNs = 50 * kNsPerMs;

// A range that the data cannot hold must not become an index.
Status CheckRange(const control::DataLease::Range& range, uint64_t samples) {
  if (range.begin() < range.end() && range.end() <= samples) return OkStatus();
  return DataLoss("data lease " + std::to_string(range.lease_id()) + " covers positions " +
                  std::to_string(range.begin()) + " to " + std::to_string(range.end()) +
                  ": expected a range of the " + std::to_string(samples) + " samples");
}

}  // namespace

LeaseSource::LeaseSource(SampleOrder order, uint64_t batch, LeaseBroker& broker)
    : order_(std::move(order)), batch_(batch), broker_(broker) {
  thread_ = Thread("data-leases", [this] { LeaseLoop(); });
}

LeaseSource::~LeaseSource() {
  Stop();
  thread_.Join();
}

void LeaseSource::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

void LeaseSource::Finish(std::span<const uint64_t> lease_ids) {
  if (lease_ids.empty()) return;
  MutexLock lock(mutex_);
  finished_.insert(finished_.end(), lease_ids.begin(), lease_ids.end());
  changed_.NotifyAll();
}

bool LeaseSource::WaitForWork(std::vector<uint64_t>& finished, size_t& wanted) {
  MutexLock lock(mutex_);
  while (!stopped_ && finished_.empty() && ranges_.size() >= kRangesAhead) changed_.Wait(lock);
  if (stopped_) return false;
  finished.clear();
  finished.swap(finished_);
  wanted = kRangesAhead - std::min(kRangesAhead, ranges_.size());
  return true;
}

void LeaseSource::LeaseLoop() {
  std::vector<uint64_t> finished;
  size_t wanted = 0;
  while (WaitForWork(finished, wanted)) {
    Status status;
    if (!finished.empty()) status = broker_.Finish(finished);
    control::DataLease lease;
    if (status.ok() && wanted > 0) {
      auto result = broker_.Lease(static_cast<uint32_t>(wanted));
      if (result) lease = std::move(*result);
      status = result ? OkStatus() : std::move(result).error();
    }
    for (const auto& range : lease.ranges()) {
      if (status.ok()) status = CheckRange(range, order_.samples());
    }
    MutexLock lock(mutex_);
    status_ = status;
    ranges_.insert(ranges_.end(), lease.ranges().begin(), lease.ranges().end());
    changed_.NotifyAll();
    if (!status.ok()) return;
    if (wanted > 0 && lease.ranges().empty() && !stopped_) changed_.WaitFor(lock, kEmptyPauseNs);
  }
}

Result<control::DataLease::Range> LeaseSource::TakeRange() {
  MutexLock lock(mutex_);
  while (!stopped_ && status_.ok() && ranges_.empty()) changed_.Wait(lock);
  if (stopped_) return Err(Aborted("the data source was stopped"));
  if (!status_.ok()) return Err(status_);
  control::DataLease::Range range = std::move(ranges_.front());
  ranges_.pop_front();
  changed_.NotifyAll();
  return range;
}

Result<bool> LeaseSource::Next(MicroBatch& out) {
  out.samples.clear();
  out.finished_leases.clear();
  while (out.samples.size() < batch_) {
    if (next_ >= range_.end()) {
      SLACKLINE_ASSIGN_OR_RETURN(range_, TakeRange());
      next_ = range_.begin();
    }
    out.samples.push_back(order_.At(range_.pass(), next_++));
    if (next_ == range_.end()) out.finished_leases.push_back(range_.lease_id());
  }
  return true;
}

}  // namespace slackline::worker
