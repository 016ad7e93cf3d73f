#include "server/reduction.h"

#include <glog/logging.h>

#include <algorithm>

#include "common/codec/array_math.h"

namespace slackline::server {

bool Reduction::HasContributed(WorkerId worker, Incarnation incarnation) const {
  return std::ranges::any_of(contributors_, [&](const Life& life) {
    return life.worker == worker && life.incarnation == incarnation;
  });
}

void Reduction::Begin(Clock clock) {
  CHECK_GT(clock, clock_) << "clocks of a reduction only rise";
  clock_ = clock;
  complete_ = false;
  weight_ = 0;
  contributors_.clear();
  values_.clear();
}

void Reduction::Add(WorkerId worker, Incarnation incarnation, double weight,
                    std::span<const float> values, bool maximum) {
  CHECK(!complete_ && !HasContributed(worker, incarnation)) << "a contribution counts once";
  contributors_.push_back({worker, incarnation});
  if (values.empty()) return;
  weight_ += weight;
  if (values_.empty()) {
    values_.assign(values.begin(), values.end());
    return;
  }
  CHECK_EQ(values.size(), values_.size());
  if (maximum) {
    for (size_t i = 0; i < values.size(); ++i) values_[i] = std::max(values_[i], values[i]);
  } else {
    AddArrays(values_.data(), values.data(), values.size());
  }
}

void Reduction::Settle(const Consistency& consistency, uint32_t chunk) {
  if (complete_ || clock_ == kNoClock) return;
  complete_ = std::ranges::all_of(consistency.view().members, [&](const Member& member) {
    return HasContributed(member.worker, member.incarnation) ||
           // A later joiner's watermark is just below its first clock, so it is not waited for.
           consistency.Watermark(chunk, member.worker, member.incarnation) >= clock_;
  });
}

}  // namespace slackline::server
