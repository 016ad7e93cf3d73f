// The job as one shard sees it: the parts of the JobSpec that decide what a push does, checked and
// turned into the types of the layers below.
// Threading: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/codec/chunk_codec.h"
#include "common/optimizer/optimizer.h"
#include "common/status.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "server/consistency/consistency.h"

namespace slackline::server {

struct ShardJob {
  ConsistencyMode mode = ConsistencyMode::kBsp;
  Clock staleness = 0;
  bool deterministic = false;    // BSP: the fixed summation tree instead of arrival order.
  bool async_scale_sum = false;  // SSP, ASP: the learning rate is not divided by W.
  uint32_t quorum = 0;           // As ConsistencyOptions.
  TimeNs grace_ns = 0;
  Clock last_clock = 0;
  bool staleness_rate = false;   // SSP, ASP: see StalenessDivisor.
  float delay_compensation = 0;  // SSP, ASP: lambda of CompensateDelay; 0: off.
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  CodecPlan push_plan;
  CodecPlan pull_plan;
};

// InvalidArgument names the field, its value and what is allowed.
Result<ShardJob> ParseShardJob(const control::JobSpec& spec);
// Under this name checkpoints hold the published reference of a lossy pull codec.
inline constexpr std::string_view kReferenceSlot = "reference";
// Names of the state that the job keeps beside the weights, as checkpoints call it: the
// optimizer's, and the reference.
Result<std::vector<std::string>> SlotNames(const control::JobSpec& spec);

}  // namespace slackline::server
