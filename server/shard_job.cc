#include "server/shard_job.h"

#include <string>

#include "proto/job_codecs.h"
#include "proto/optimizer_spec.h"

namespace slackline::server {
namespace {

// What changes an update's rule fits only some modes.
Status ParseVariants(const control::JobSpec& spec, ShardJob* job) {
  const bool bsp = job->mode == ConsistencyMode::kBsp;
  constexpr int64_t kMaxGraceMs = 3'600'000;
  if (spec.quorum() > 0 && (!bsp || job->deterministic)) {
    return InvalidArgument("quorum " + std::to_string(spec.quorum()) +
                           ": a quorum needs staleness 0 (BSP), without deterministic");
  }
  if (spec.grace_ms() < 0 || spec.grace_ms() > kMaxGraceMs) {
    return InvalidArgument("grace_ms " + std::to_string(spec.grace_ms()) + ": expected 0.." +
                           std::to_string(kMaxGraceMs));
  }
  if (bsp && (spec.staleness_rate() || spec.delay_compensation() != 0 ||
              job->optimizer.kind == OptimizerKind::kDelayedNesterov)) {
    return InvalidArgument(
        "staleness_rate, delay_compensation and delayed_nesterov need a staleness above 0 or "
        "async: under BSP no push is late");
  }
  if (!(spec.delay_compensation() >= 0 && spec.delay_compensation() <= 1e6)) {
    return InvalidArgument("delay_compensation " + std::to_string(spec.delay_compensation()) +
                           ": expected 0..1e6");
  }
  job->quorum = spec.quorum();
  job->grace_ns = spec.grace_ms() * kNsPerMs;
  job->last_clock = spec.steps() - 1;
  job->staleness_rate = spec.staleness_rate();
  job->delay_compensation = static_cast<float>(spec.delay_compensation());
  return OkStatus();
}

}  // namespace

Result<ShardJob> ParseShardJob(const control::JobSpec& spec) {
  ShardJob job;
  if (spec.staleness() < -1) {
    return Err(InvalidArgument("staleness " + std::to_string(spec.staleness()) +
                               ": expected 0 (BSP), a bound > 0 (SSP) or -1 (ASP)"));
  }
  job.mode = spec.staleness() == 0  ? ConsistencyMode::kBsp
             : spec.staleness() > 0 ? ConsistencyMode::kSsp
                                    : ConsistencyMode::kAsp;
  job.staleness = spec.staleness() > 0 ? spec.staleness() : 0;
  job.deterministic = spec.deterministic();
  if (job.deterministic && job.mode != ConsistencyMode::kBsp) {
    return Err(InvalidArgument("deterministic needs staleness 0 (BSP), found " +
                               std::to_string(spec.staleness())));
  }
  job.async_scale_sum = spec.async_scale_sum();
  SLACKLINE_ASSIGN_OR_RETURN(job.optimizer, proto::ParseOptimizer(spec.optimizer()));
  SLACKLINE_ASSIGN_OR_RETURN(job.schedule, proto::ParseSchedule(spec.schedule(), spec.steps()));
  SLACKLINE_RETURN_ERR_IF_ERROR(ParseVariants(spec, &job));
  SLACKLINE_ASSIGN_OR_RETURN(job.push_plan, proto::PushPlan(spec));
  SLACKLINE_ASSIGN_OR_RETURN(job.pull_plan, proto::PullPlan(spec));
  return job;
}

Result<std::vector<std::string>> SlotNames(const control::JobSpec& spec) {
  SLACKLINE_ASSIGN_OR_RETURN(const ShardJob job, ParseShardJob(spec));
  SLACKLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                             Optimizer::Create(job.optimizer));
  std::vector<std::string> names;
  for (size_t slot = 0; slot < optimizer->slot_count(); ++slot) {
    names.emplace_back(optimizer->slot_name(slot));
  }
  if (job.pull_plan.dense() == nullptr) names.emplace_back(kReferenceSlot);
  return names;
}

}  // namespace slackline::server
