#include "tests/sim/sim_process.h"

#include <algorithm>
#include <utility>

namespace slackline::sim {
namespace {

constexpr uint64_t kMaxPauseNs = 30'000;

}  // namespace

SimProcess::SimProcess(transport::SimNetwork& network, std::string name, uint64_t seed)
    : network_(network), rng_(seed), name_(std::move(name)) {}

void SimProcess::WakeSoon() { WakeAt(now_ns() + static_cast<TimeNs>(rng_.Below(kMaxPauseNs))); }

void SimProcess::WakeAt(TimeNs when_ns) {
  if (when_ns == kNever || next_turn_ns_ <= when_ns) return;
  next_turn_ns_ = std::max(when_ns, now_ns());
  network_.At(next_turn_ns_, [this, alive = std::weak_ptr<bool>(alive_), when = next_turn_ns_] {
    if (!alive.expired()) Run(when);
  });
}

void SimProcess::Run(TimeNs when_ns) {
  if (when_ns != next_turn_ns_) return;  // An earlier turn was asked for since, and was had.
  next_turn_ns_ = kNever;
  if (stalled_until_ns_ > now_ns()) {
    WakeAt(stalled_until_ns_);
    return;
  }
  Turn();
}

}  // namespace slackline::sim
