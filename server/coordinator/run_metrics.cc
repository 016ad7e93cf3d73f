#include "server/coordinator/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/coordinator/limits.h"

namespace slackline::server::coordinator {
namespace {

constexpr int kMaxLossWindow = 10;
constexpr int64_t kMaxStalenessSeen = 1 << 16;  // Larger ones count as this.
constexpr size_t kRateSeconds = 60;             // Seconds of rates that are kept.
constexpr size_t kPaceSamples = 30;             // One a second.
constexpr double kMinRateWindow = 10;
// No step of any machine moves more; a larger number is noise that would hide the true sums.
constexpr uint64_t kMaxCountPerStep = uint64_t{1} << 50;

uint64_t Clamp(uint64_t count) { return std::min(count, kMaxCountPerStep); }

double ToSeconds(TimeNs duration) {
  return static_cast<double>(duration) / static_cast<double>(kNsPerSecond);
}

std::optional<double> MeanOf(double sum, int count) {
  if (count == 0) return std::nullopt;
  return sum / count;
}

}  // namespace

void RunMetrics::Start(Clock first_clock, Clock steps, TimeNs start) {
  first_clock_ = first_clock;
  steps_ = steps;
  start_ns_ = start;
  last_report_ns_ = start;
  loss_window_ = static_cast<int>(std::clamp<Clock>((steps - first_clock) / 10, 1, kMaxLossWindow));
}

std::optional<std::string> RunMetrics::OnStep(WorkerId worker, Incarnation incarnation,
                                              const control::StepReport& report, TimeNs now) {
  Track& track = tracks_[worker];
  if (report.clock() < first_clock_ || report.clock() >= steps_ ||
      report.clock() <= track.last_clock || report.staleness_size() > kMaxStalenessCounts) {
    return std::nullopt;
  }
  track.last_clock = report.clock();
  highest_clock_ = std::max(highest_clock_, report.clock());
  if (std::isfinite(report.loss())) {
    if (report.clock() < first_clock_ + loss_window_) {
      track.first_sum += report.loss();
      ++track.first_count;
    }
    track.last.push_back(report.loss());
    if (track.last.size() > static_cast<size_t>(loss_window_)) track.last.pop_front();
  }
  Count(report, now);

  nlohmann::ordered_json line = {{"time_s", ToSeconds(now - start_ns_)},
                                 {"worker", worker},
                                 {"incarnation", incarnation},
                                 {"clock", report.clock()},
                                 {"loss", report.loss()},
                                 {"seconds", report.seconds()},
                                 {"samples", report.samples()},
                                 {"tokens", report.tokens()},
                                 {"bytes_pushed", report.bytes_pushed()},
                                 {"bytes_pulled", report.bytes_pulled()},
                                 {"loss_scale", report.loss_scale()},
                                 {"empty", report.empty()},
                                 {"gradient_norm", report.gradient_norm()},
                                 {"learning_rate", report.learning_rate()}};
  auto staleness = nlohmann::ordered_json::array();  // [staleness, chunks] pairs.
  for (const auto& entry : report.staleness()) {
    staleness.push_back({entry.staleness(), entry.chunks()});
  }
  line["staleness"] = std::move(staleness);
  return line.dump();
}

void RunMetrics::Count(const control::StepReport& report, TimeNs now) {
  last_report_ns_ = now;
  if (report.empty()) ++empty_steps_;
  tokens_ += static_cast<double>(Clamp(report.tokens()));
  bytes_pushed_ += Clamp(report.bytes_pushed());
  bytes_pulled_ += Clamp(report.bytes_pulled());
  for (const auto& entry : report.staleness()) {
    staleness_[std::clamp<int64_t>(entry.staleness(), 0, kMaxStalenessSeen)] +=
        Clamp(entry.chunks());
  }
  if (report.seconds() > 0 && report.seconds() < 1e6) {
    step_seconds_ =
        step_seconds_ == 0 ? report.seconds() : 0.9 * step_seconds_ + 0.1 * report.seconds();
  }
  const int64_t index = now / kNsPerSecond;
  if (seconds_.empty() || seconds_.back().index != index) {
    seconds_.push_back({index, 0, 0, 0});
    if (seconds_.size() > kRateSeconds) seconds_.pop_front();
  }
  seconds_.back().tokens += static_cast<double>(Clamp(report.tokens()));
  seconds_.back().pushed += static_cast<double>(Clamp(report.bytes_pushed()));
  seconds_.back().pulled += static_cast<double>(Clamp(report.bytes_pulled()));
}

void RunMetrics::OnProgress(Clock slowest, TimeNs now) {
  if (!pace_.empty() && now - pace_.back().at < kNsPerSecond) return;
  pace_.push_back({now, slowest});
  if (pace_.size() > kPaceSamples) pace_.pop_front();
}

RunMetrics::Rates RunMetrics::RecentRates(TimeNs now) const {
  // A window of several steps, so that slow steps do not make the rate flicker.
  const double window = std::clamp(4 * step_seconds_, kMinRateWindow, double{kRateSeconds});
  const double span = std::min(window, ToSeconds(now - start_ns_));
  if (span <= 0) return {};
  const double oldest = ToSeconds(now) - window;
  Rates rates;
  for (const Second& second : seconds_) {
    if (static_cast<double>(second.index) < oldest) continue;
    rates.tokens_per_s += second.tokens / span;
    rates.bytes_pushed_per_s += second.pushed / span;
    rates.bytes_pulled_per_s += second.pulled / span;
  }
  return rates;
}

double RunMetrics::ClocksPerSecond() const {
  if (pace_.size() < 2) return 0;
  const double seconds = ToSeconds(pace_.back().at - pace_.front().at);
  return std::max(0.0, static_cast<double>(pace_.back().clock - pace_.front().clock) / seconds);
}

int64_t RunMetrics::StalenessPercentile(double fraction) const {
  uint64_t total = 0;
  for (const auto& [staleness, chunks] : staleness_) total += chunks;
  const double wanted = fraction * static_cast<double>(total);
  uint64_t seen = 0;
  for (const auto& [staleness, chunks] : staleness_) {
    seen += chunks;
    if (static_cast<double>(seen) >= wanted) return staleness;
  }
  return staleness_.rbegin()->first;
}

RunMetrics::Totals RunMetrics::ComputeTotals() const {
  Totals totals;
  totals.steps = highest_clock_ + 1;
  double first = 0, last = 0;
  int first_count = 0, last_count = 0;
  for (const auto& [worker, track] : tracks_) {
    if (const auto mean = MeanOf(track.first_sum, track.first_count)) {
      first += *mean;
      ++first_count;
    }
    if (track.last.empty() || track.last_clock + 2 * loss_window_ < highest_clock_) continue;
    double sum = 0;
    for (const double loss : track.last) sum += loss;
    last += sum / static_cast<double>(track.last.size());
    ++last_count;
  }
  totals.loss_first = MeanOf(first, first_count);
  totals.loss_last = MeanOf(last, last_count);
  totals.seconds = ToSeconds(last_report_ns_ - start_ns_);
  totals.tokens_per_s = totals.seconds > 0 ? tokens_ / totals.seconds : 0;
  totals.bytes_pushed = bytes_pushed_;
  totals.bytes_pulled = bytes_pulled_;
  totals.empty_steps = empty_steps_;
  if (!staleness_.empty()) {
    totals.staleness_p50 = StalenessPercentile(0.50);
    totals.staleness_p99 = StalenessPercentile(0.99);
    totals.staleness_max = staleness_.rbegin()->first;
  }
  return totals;
}

std::optional<double> RunMetrics::LastLoss(WorkerId worker) const {
  const auto track = tracks_.find(worker);
  if (track == tracks_.end() || track->second.last.empty()) return std::nullopt;
  return track->second.last.back();
}

}  // namespace slackline::server::coordinator
