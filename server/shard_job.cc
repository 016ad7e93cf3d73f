#include "server/shard_job.h"

#include <string>

#include "proto/job_codecs.h"

namespace slackline::server {
namespace {

Result<ScheduleConfig> ParseSchedule(const control::JobSpec& spec) {
  const control::Schedule& in = spec.schedule();
  ScheduleConfig out;
  if (in.name() == "constant") {
    out.kind = ScheduleConfig::Kind::kConstant;
  } else if (in.name() == "cosine") {
    out.kind = ScheduleConfig::Kind::kCosine;
  } else if (in.name() == "step") {
    out.kind = ScheduleConfig::Kind::kStep;
  } else {
    return Err(InvalidArgument("schedule '" + in.name() + "': expected constant, cosine or step"));
  }
  out.learning_rate = in.learning_rate();
  out.warmup_steps = in.warmup_steps();
  out.total_steps = in.total_steps() > 0 ? in.total_steps() : spec.steps();
  out.final_fraction = in.final_fraction();
  out.step_every = in.step_every();
  out.step_factor = in.step_factor();
  SLACKLINE_RETURN_ERR_IF_ERROR(ValidateSchedule(out));
  return out;
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
  const control::Optimizer& optimizer = spec.optimizer();
  SLACKLINE_ASSIGN_OR_RETURN(job.optimizer.kind, ParseOptimizerKind(optimizer.name()));
  job.optimizer.momentum = optimizer.momentum();
  job.optimizer.beta1 = optimizer.beta1();
  job.optimizer.beta2 = optimizer.beta2();
  job.optimizer.epsilon = optimizer.epsilon();
  job.optimizer.weight_decay = optimizer.weight_decay();
  SLACKLINE_ASSIGN_OR_RETURN(job.schedule, ParseSchedule(spec));
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
