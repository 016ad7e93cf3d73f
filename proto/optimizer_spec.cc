#include "proto/optimizer_spec.h"

#include <string>

namespace slackline::proto {

Result<OptimizerConfig> ParseOptimizer(const control::Optimizer& in) {
  OptimizerConfig out;
  SLACKLINE_ASSIGN_OR_RETURN(out.kind, ParseOptimizerKind(in.name()));
  out.momentum = in.momentum();
  out.beta1 = in.beta1();
  out.beta2 = in.beta2();
  out.epsilon = in.epsilon();
  out.weight_decay = in.weight_decay();
  out.activation = in.activation();
  if (in.period() > 0) out.period = in.period();
  return out;
}

Result<ScheduleConfig> ParseSchedule(const control::Schedule& in, Clock steps) {
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
  out.total_steps = in.total_steps() > 0 ? in.total_steps() : steps;
  out.final_fraction = in.final_fraction();
  out.step_every = in.step_every();
  out.step_factor = in.step_factor();
  SLACKLINE_RETURN_ERR_IF_ERROR(ValidateSchedule(out));
  return out;
}

}  // namespace slackline::proto
