#include "server/coordinator/checkpoints.h"

#include <algorithm>
#include <cstdio>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

constexpr Clock kMaxExtraLead = 1 << 16;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                  c == '_';
         });
}

bool IsHash(const std::string& text) {
  return text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string StepName(Clock clock) {
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "step-%08lld", static_cast<long long>(clock + 1));
  return buffer;
}

}  // namespace

Checkpoints::Checkpoints(const Options& options)
    : options_(options),
      last_clock_(options.first_clock - 1),
      last_committed_clock_(options.first_clock - 1) {}

void Checkpoints::Start(Clock clock, bool final) {
  plan_ = {};
  plan_.id = next_id_++;
  plan_.clock = clock;
  plan_.final = final;
  plan_.directory = Text(options_.directory, "/.tmp-", plan_.id);
  plan_.target = Text(options_.directory, '/', StepName(clock));
  awaited_.clear();
  deadline_ns_ = kNever;
  last_clock_ = clock;
  phase_ = Phase::kPreparing;
}

bool Checkpoints::StartDue(Clock slowest, Clock highest, Clock lead) {
  if (!enabled() || options_.every <= 0 || phase_ != Phase::kIdle) return false;
  const Clock every = options_.every;
  // The first multiple that was not tried yet, as a count of steps.
  Clock steps = ((last_clock_ + 1) / every + 1) * every;
  if (!options_.exact_cut) {
    if (slowest + 1 < steps || slowest + 1 >= options_.steps) return false;
    Start(slowest, false);
    return true;
  }
  const Clock earliest = highest + lead + extra_lead_ + 1;
  if (steps < earliest) steps = (earliest + every - 1) / every * every;
  if (steps >= options_.steps) return false;  // The final checkpoint's, or beyond.
  Start(steps - 1, false);
  return true;
}

bool Checkpoints::StartFinal(Clock clock, TimeNs now) {
  if (!enabled() || clock <= last_committed_clock_) return false;
  Start(clock, true);
  deadline_ns_ = now + options_.timeout_ns;
  return true;
}

bool Checkpoints::OnPrepared(uint64_t id, const std::vector<ShardIndex>& shards) {
  if (phase_ != Phase::kPreparing || id != plan_.id) return false;
  awaited_ = shards;
  phase_ = Phase::kWriting;
  return true;
}

Result<bool> Checkpoints::OnShardDone(const control::CheckpointShardDone& report) {
  if (phase_ != Phase::kWriting || report.checkpoint_id() != plan_.id) return false;
  const auto awaited = std::find(awaited_.begin(), awaited_.end(), report.shard());
  if (awaited == awaited_.end()) return false;  // A resend, or a shard without chunks.
  if (!report.error().empty()) {
    return Err(Aborted(Text("shard ", report.shard(), ": ", Printable(report.error(), 400))));
  }
  if (!IsFileName(report.file()) || !IsHash(report.xxh3()) || report.bytes() > kMaxFileBytes) {
    return Err(InvalidArgument(Text("checkpoint report of shard ", report.shard(),
                                    ": the file's name, size or checksum cannot be: '",
                                    Printable(report.file()), "', ", report.bytes(), " bytes, '",
                                    Printable(report.xxh3()), "'")));
  }
  awaited_.erase(awaited);
  plan_.files.push_back({report.shard(), report.file(), report.bytes(), report.xxh3()});
  if (!awaited_.empty()) return false;
  std::sort(plan_.files.begin(), plan_.files.end(),
            [](const auto& a, const auto& b) { return a.shard < b.shard; });
  phase_ = Phase::kCommitting;
  return true;
}

bool Checkpoints::OnCommitted(uint64_t id) {
  if (phase_ != Phase::kCommitting || id != plan_.id) return false;
  phase_ = Phase::kIdle;
  last_committed_clock_ = plan_.clock;
  last_target_ = plan_.target;
  ++committed_;
  extra_lead_ = 0;
  return true;
}

Status Checkpoints::CheckDeadline(Clock highest, TimeNs now) {
  if (phase_ != Phase::kWriting) return OkStatus();
  const bool reached = highest >= plan_.clock || !plan_.files.empty();
  if (deadline_ns_ == kNever && reached) deadline_ns_ = now + options_.timeout_ns;
  if (now < deadline_ns_) return OkStatus();
  std::string missing;
  for (const ShardIndex shard : awaited_) {
    missing += (missing.empty() ? "" : ", ") + std::to_string(shard);
  }
  return DeadlineExceeded(
      Text("no report from shard ", missing, " within ", Seconds(options_.timeout_ns)));
}

std::string Checkpoints::Abandon(const std::string& reason) {
  phase_ = Phase::kIdle;
  ++failures_;
  last_error_ = reason;
  extra_lead_ = std::min(kMaxExtraLead, std::max<Clock>(2 * extra_lead_, 8));
  return plan_.directory;
}

}  // namespace slackline::server::coordinator
