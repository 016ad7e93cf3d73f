#include "worker/data/sample_source.h"

#include <glog/logging.h>

namespace slackline::worker {
namespace {

// Keeps the order of samples apart from every other use of the job's seed.
constexpr uint64_t kOrderStream = 0x6F726465722D3031;  // "order-01"

}  // namespace

SampleId SampleOrder::At(uint64_t pass, uint64_t position) {
  if (!permutation_ || pass != pass_) {
    permutation_.emplace(samples_, Mix64(seed_ ^ Mix64(kOrderStream ^ Mix64(pass))));
    pass_ = pass;
  }
  return {pass, (*permutation_)(position)};
}

BspSource::BspSource(SampleOrder order, const SharedOrder& share)
    : order_(std::move(order)), share_(share), clock_(share.first_clock) {
  CHECK_GE(clock_, 0);
  CHECK_LT(share.rank, share.workers);
}

Result<bool> BspSource::Next(MicroBatch& out) {
  out.samples.clear();
  out.finished_leases.clear();
  if (clock_ >= share_.end_clock) return false;
  const uint64_t in_clock = uint64_t{share_.workers} * share_.micro_batches;
  const uint64_t number = static_cast<uint64_t>(clock_) * in_clock +
                          uint64_t{share_.rank} * share_.micro_batches + micro_batch_;
  for (uint64_t i = 0; i < share_.batch; ++i) {
    const uint64_t position = number * share_.batch + i;
    out.samples.push_back(order_.At(position / order_.samples(), position % order_.samples()));
  }
  if (++micro_batch_ == share_.micro_batches) {
    micro_batch_ = 0;
    ++clock_;
  }
  return true;
}

}  // namespace slackline::worker
