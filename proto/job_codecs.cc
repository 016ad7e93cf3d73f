#include "proto/job_codecs.h"

#include <vector>

namespace slackline::proto {
namespace {

Result<CodecPlan> PlanOf(const char* field, const std::string& name, Clock warmup_clocks,
                         const control::JobSpec& job) {
  CodecRule rule;
  rule.name = name;
  rule.block = job.codec_block();
  rule.stochastic = job.codec_stochastic();
  rule.int8_values = job.topk_int8_values();
  rule.fraction = job.topk_fraction();
  rule.warmup_clocks = warmup_clocks;
  rule.min_elements = job.codec_min_elements();
  Result<CodecPlan> plan = CodecPlan::Create(rule);
  if (!plan) return Err(InvalidArgument(std::string(field) + ": " + plan.error().message()));
  return plan;
}

uint64_t ElementCount(const control::TensorSpec& tensor) {
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape()) count *= static_cast<uint64_t>(extent);
  return count;
}

}  // namespace

Result<CodecPlan> PushPlan(const control::JobSpec& job) {
  return PlanOf("push_codec", job.push_codec(), job.topk_warmup_steps(), job);
}

Result<CodecPlan> PullPlan(const control::JobSpec& job) {
  return PlanOf("pull_codec", job.pull_codec(), 0, job);
}

ChunkCodec MakeChunkCodec(const CodecPlan& plan, const control::Chunk& chunk,
                          const control::ShardMap& map) {
  std::vector<TensorPart> parts;
  for (const control::Segment& segment : chunk.segments()) {
    const control::TensorSpec& tensor = map.tensors(static_cast<int>(segment.tensor()));
    parts.push_back({segment.count(), ElementCount(tensor)});
  }
  return {plan, parts};
}

}  // namespace slackline::proto
