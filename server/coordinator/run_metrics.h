// What the run's numbers are made of: the workers' step reports, as lines for metrics.jsonl, as
// recent rates for the progress line, and as the summary.
//
// Reports are a worker's word: they are clamped, counted once a (worker, clock), and never trusted
// for decisions.
// Threading: owner thread: the coordinator's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::server::coordinator {

class RunMetrics {
 public:
  // `first_clock`, `steps`: of the job. `start`: when the workers were told to start.
  void Start(Clock first_clock, Clock steps, TimeNs start);

  // Takes a report in. Returns its line for metrics.jsonl; nothing if it was counted before or its
  // clock is not one of the job's.
  std::optional<std::string> OnStep(WorkerId worker, Incarnation incarnation,
                                    const control::StepReport& report, TimeNs now);
  // Once a tick: where the slowest member is, for the pace.
  void OnProgress(Clock slowest, TimeNs now);

  struct Rates {
    double tokens_per_s = 0;
    double bytes_pushed_per_s = 0;
    double bytes_pulled_per_s = 0;
  };
  Rates RecentRates(TimeNs now) const;
  // Steps a second of the slowest member over the last half minute; 0 if not known yet.
  double ClocksPerSecond() const;

  struct Totals {
    int64_t steps = 0;  // Highest reported clock + 1.
    // Mean over workers of the mean loss of their first and last few steps: a tenth of the run's
    // steps, at least 1 and at most 10. Workers that joined later have no first; those that died
    // long before the end no last. Absent: no finite loss.
    std::optional<double> loss_first, loss_last;
    double tokens_per_s = 0;  // All tokens over the time from Start to the last report.
    uint64_t bytes_pushed = 0, bytes_pulled = 0;
    // Over all pulls of all workers, weighted by chunks. Absent: no pulls.
    std::optional<int64_t> staleness_p50, staleness_p99, staleness_max;
    uint64_t empty_steps = 0;
    double seconds = 0;  // From Start to the last report.
  };
  Totals ComputeTotals() const;

  // A worker's latest finite loss, for the status page.
  std::optional<double> LastLoss(WorkerId worker) const;
  Clock highest_clock() const { return highest_clock_; }

 private:
  struct Track {
    Clock last_clock = kNoClock;
    double first_sum = 0;
    int first_count = 0;
    std::deque<double> last;  // Finite losses of the last `loss_window_` steps.
  };
  struct Second {
    int64_t index = 0;
    double tokens = 0, pushed = 0, pulled = 0;
  };
  struct Pace {
    TimeNs at = 0;
    Clock clock = 0;
  };

  int64_t StalenessPercentile(double fraction) const;
  void Count(const control::StepReport& report, TimeNs now);

  Clock first_clock_ = 0;
  Clock steps_ = 0;
  int loss_window_ = 1;
  TimeNs start_ns_ = 0;
  TimeNs last_report_ns_ = 0;
  Clock highest_clock_ = kNoClock;
  std::map<WorkerId, Track> tracks_;
  std::map<int64_t, uint64_t> staleness_;  // Chunks by staleness, clamped to a bound.
  std::deque<Second> seconds_;
  std::deque<Pace> pace_;
  double tokens_ = 0;
  uint64_t bytes_pushed_ = 0, bytes_pulled_ = 0;
  uint64_t empty_steps_ = 0;
  double step_seconds_ = 0;  // Smoothed duration of a step: how far rates have to look back.
};

}  // namespace slackline::server::coordinator
