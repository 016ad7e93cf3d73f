// How an endpoint waits when there is nothing to do: by sleeping, by spinning, or by spinning for a
// moment first, as long as that pays.
// Threading: values; a Spinner belongs to its endpoint's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/time_source.h"

namespace slackline::transport {

enum class PollMode : uint8_t {
  kSleep,     // Least processor time.
  kAdaptive,  // Spins for up to kAdaptiveSpinNs before it sleeps, while that finds work.
  kBusy,      // Never sleeps: least latency, a core a thread.
};

inline constexpr std::string_view kPollModeNames[] = {"sleep", "adaptive", "busy"};

inline std::optional<PollMode> ParsePollMode(std::string_view name) {
  for (size_t i = 0; i < std::size(kPollModeNames); ++i) {
    if (name == kPollModeNames[i]) return static_cast<PollMode>(i);
  }
  return std::nullopt;
}

// About what a sleep and a wake-up cost: who spins as long as that loses at most half (the
// competitive argument of Karlin et al., "Competitive Randomized Algorithms for Non-Uniform
// Problems", 1990).
inline constexpr TimeNs kAdaptiveSpinNs = 10'000;

// One turn of a spin loop: tells the processor so.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Decides how long to spin before a sleep, from what spinning brought before.
class Spinner {
 public:
  explicit Spinner(PollMode mode) : mode_(mode) {}

  // 0: sleep at once.
  TimeNs BudgetNs(TimeNs max_wait_ns) {
    if (mode_ == PollMode::kBusy) return max_wait_ns;
    if (mode_ == PollMode::kSleep) return 0;
    // Where it never pays, one try in kProbeInterval finds out when that changes.
    if (score_ == 0 && ++skipped_ < kProbeInterval) return 0;
    skipped_ = 0;
    return std::min(max_wait_ns, kAdaptiveSpinNs);
  }
  void Report(bool found_work) {
    score_ = found_work ? std::min(score_ + 2, kMaxScore) : std::max(score_ - 1, 0);
  }

 private:
  static constexpr int kMaxScore = 8;
  static constexpr int kProbeInterval = 32;

  const PollMode mode_;
  int score_ = kMaxScore;
  int skipped_ = 0;
};

}  // namespace slackline::transport
