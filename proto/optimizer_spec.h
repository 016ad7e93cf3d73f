// An optimizer and a schedule as a job describes them, turned into the types of common/optimizer.
// Threading: pure functions. Errors: InvalidArgument names the field, its value and what is
// allowed.
#pragma once

#include "common/optimizer/optimizer.h"
#include "common/status.h"
#include "proto/control.pb.h"

namespace slackline::proto {

// Whether the numbers fit the optimizer is for Optimizer::Create to say.
Result<OptimizerConfig> ParseOptimizer(const control::Optimizer& in);
// `steps`: of the job, in whose last one a schedule ends that names no end of its own.
Result<ScheduleConfig> ParseSchedule(const control::Schedule& in, Clock steps);

}  // namespace slackline::proto
