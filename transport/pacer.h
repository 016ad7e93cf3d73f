// A bucket of bytes that fills at a link's rate: what `link_gbps` throttles an endpoint by, once
// for each direction, so that a fast machine shows what a slow link costs.
//
// An idle link saves up kBurstNs only, since a real one cannot be used later for what it did not
// carry. While bytes wait for it, it counts on, however late its owner wakes up: the rate does not
// depend on the accuracy of sleeps.
// Threading: one thread at a time. Time is handed in and never goes back. Allocation: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/time_source.h"

namespace slackline::transport {

class Pacer {
 public:
  static constexpr TimeNs kBurstNs = 250'000;
  static constexpr TimeNs kMaxBacklogNs = 100 * kNsPerMs;  // Who wakes up later loses the rest.

  // 0: no limit.
  explicit Pacer(double gbps = 0)
      : bytes_per_ns_(gbps / 8), quantum_(std::max(kBurstNs * bytes_per_ns_, 256.0)) {}

  bool limits() const { return bytes_per_ns_ > 0; }

  // Bytes that may move now. 0: none before ReadyAt(); the caller comes back then, not earlier.
  size_t Available(TimeNs now_ns) {
    if (!limits()) return SIZE_MAX;
    tokens_ += static_cast<double>(now_ns - last_ns_) * bytes_per_ns_;
    last_ns_ = now_ns;
    tokens_ = std::min(tokens_, waiting_ ? kMaxBacklogNs * bytes_per_ns_ : quantum_);
    waiting_ = tokens_ < quantum_;
    return waiting_ ? 0 : static_cast<size_t>(tokens_);
  }
  // They have moved; what was moved beyond the available is made up for.
  void Take(size_t bytes) {
    if (limits()) tokens_ -= static_cast<double>(bytes);
  }
  // When the next quantum is full.
  TimeNs ReadyAt() const {
    return last_ns_ + static_cast<TimeNs>((quantum_ - tokens_) / bytes_per_ns_) + 1;
  }

 private:
  double bytes_per_ns_;
  double quantum_;  // Moved at once: what a link carries in kBurstNs, and a message's header.
  double tokens_ = 0;
  TimeNs last_ns_ = 0;
  bool waiting_ = false;  // Somebody was told to come back.
};

}  // namespace slackline::transport
