#include "worker/trainer/gradient_pipeline.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace slackline::worker {

GradientPipeline::GradientPipeline(const GradientOptions& options, Client& client, Model& model)
    : options_(options),
      client_(client),
      model_(model),
      scaler_(options.loss_scale),
      tree_(options.micro_batches, model.weight_count()) {
  for (const control::Chunk& chunk : client.shard_map().chunks()) {
    CHECK_EQ(chunk.index(), chunks_.size()) << "chunks are numbered in the map's order";
    chunks_.push_back({chunk.index(), chunk.flat_offset(), chunk.count(), 0, 0});
  }
  for (size_t tensor = 0; tensor < model.parameters().size(); ++tensor) {
    for (const ChunkIndex chunk : client.tensor_chunks(tensor)) ++chunks_[chunk].tensors;
  }
}

Status GradientPipeline::Backward(Clock clock, uint32_t index) {
  if (index == 0) {
    overflow_ = false;
    pushed_ = 0;
  }
  leaf_ = {};
  if (index + 1 < options_.micro_batches) return AccumulateLeaf();
  // The first step has no previous norm to clip by.
  const bool overlap = options_.overlap && (options_.clip_norm == 0 || previous_norm_ >= 0);
  return overlap ? BackwardOverlapped(clock) : BackwardExact(clock);
}

GradientOutcome GradientPipeline::EndStep() {
  GradientOutcome outcome;
  outcome.scale = scaler_.scale();
  outcome.overflow = overflow_;
  outcome.partial = overflow_ && pushed_ > 0;
  if (!overflow_) outcome.norm = previous_norm_ = NormOf(leaf_);
  scaler_.Update(overflow_);
  tree_.Reset();
  return outcome;
}

double GradientPipeline::NormOf(const GradientCheck& check) const {
  return std::sqrt(check.sum_squares) / scaler_.scale() / static_cast<double>(options_.batch);
}

std::span<float> GradientPipeline::GradientsOf(const ChunkState& chunk) {
  return client_.gradients().subspan(chunk.offset, chunk.count);
}

Status GradientPipeline::BackwardInto(const OnGradient& on_gradient) {
  std::ranges::fill(client_.gradients(), 0.0f);
  return model_.Backward(scaler_.scale(), on_gradient);
}

Status GradientPipeline::BeginStep(Clock clock, bool empty) {
  StepOptions step;
  step.empty = empty;
  step.scale = scaler_.scale();
  step.weight =
      empty ? 0 : static_cast<double>(options_.batch) * static_cast<double>(options_.micro_batches);
  return client_.BeginStep(clock, step);
}

Status GradientPipeline::AccumulateLeaf() {
  SLACKLINE_RETURN_IF_ERROR(BackwardInto({}));
  const std::span<const float> gradients = client_.gradients();
  leaf_ = CheckGradient(gradients);
  overflow_ = overflow_ || !leaf_.finite;
  tree_.AddLeaf(gradients, ClipFactor(NormOf(leaf_), options_.clip_norm));
  return OkStatus();
}

bool GradientPipeline::FinishChunk(const ChunkState& chunk, float factor) {
  const std::span<float> part = GradientsOf(chunk);
  tree_.FinishPart(part, chunk.offset, factor);
  return FitsCodec(CheckGradient(part), options_.push_codec);
}

Status GradientPipeline::OnTensor(size_t tensor, float factor) {
  for (const ChunkIndex index : client_.tensor_chunks(tensor)) {
    ChunkState& chunk = chunks_[index];
    if (--chunk.remaining > 0) continue;
    leaf_.Merge(CheckGradient(GradientsOf(chunk)));
    if (!FinishChunk(chunk, factor)) overflow_ = true;
    SLACKLINE_RETURN_IF_ERROR(client_.PushPull(index, /*empty=*/overflow_));
    if (!overflow_) ++pushed_;
  }
  return OkStatus();
}

Status GradientPipeline::BackwardOverlapped(Clock clock) {
  for (ChunkState& chunk : chunks_) chunk.remaining = chunk.tensors;
  const float factor = ClipFactor(previous_norm_, options_.clip_norm);
  SLACKLINE_RETURN_IF_ERROR(BeginStep(clock, /*empty=*/overflow_));
  return BackwardInto([this, factor](size_t tensor) { return OnTensor(tensor, factor); });
}

Status GradientPipeline::BackwardExact(Clock clock) {
  SLACKLINE_RETURN_IF_ERROR(BackwardInto({}));
  leaf_ = CheckGradient(client_.gradients());
  overflow_ = overflow_ || !leaf_.finite;
  const float factor = ClipFactor(NormOf(leaf_), options_.clip_norm);
  for (const ChunkState& chunk : chunks_) {
    if (!overflow_ && !FinishChunk(chunk, factor)) overflow_ = true;
  }
  SLACKLINE_RETURN_IF_ERROR(BeginStep(clock, /*empty=*/overflow_));
  for (const ChunkIndex chunk : client_.chunk_order()) {
    SLACKLINE_RETURN_IF_ERROR(client_.PushPull(chunk, /*empty=*/overflow_));
  }
  return OkStatus();
}

}  // namespace slackline::worker
