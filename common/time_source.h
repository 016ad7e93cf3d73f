// Monotonic time as an interface, so that a shard, a client and a coordinator run unchanged under
// the simulator, whose time is an event queue's.
// Threading: implementations are thread-safe for NowNs().
#pragma once

#include "common/types.h"

namespace slackline {

inline constexpr TimeNs kNsPerMs = 1'000'000;
inline constexpr TimeNs kNsPerSecond = 1'000'000'000;
// "No deadline": later than any time that will be seen.
inline constexpr TimeNs kNever = INT64_MAX;

class TimeSource {
 public:
  virtual ~TimeSource() = default;
  // Nanoseconds since an arbitrary point; never goes back.
  virtual TimeNs NowNs() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyTimeSource final : public TimeSource {
 public:
  TimeNs NowNs() const override;
};

}  // namespace slackline
