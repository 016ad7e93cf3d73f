#include "worker/trainer/local_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace slackline::worker {

Result<std::unique_ptr<LocalSteps>> LocalSteps::Create(const LocalStepOptions& local,
                                                       const GradientOptions& gradient,
                                                       Client& client, Model& model) {
  SLACKLINE_RETURN_ERR_IF_ERROR(ValidateSchedule(local.schedule));
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> optimizer,
                             Optimizer::Create(local.optimizer));
  std::unique_ptr<LocalSteps> self(
      new LocalSteps(local, gradient, client, model, std::move(optimizer)));
  SLACKLINE_RETURN_ERR_IF_ERROR(model.Bind(self->weights_, client.gradients()));
  return self;
}

LocalSteps::LocalSteps(const LocalStepOptions& local, const GradientOptions& gradient,
                       Client& client, Model& model, std::unique_ptr<Optimizer> optimizer)
    : local_(local),
      options_(gradient),
      client_(client),
      model_(model),
      optimizer_(std::move(optimizer)),
      tree_(gradient.micro_batches, model.weight_count()),
      weights_(model.weight_count()),
      slots_(optimizer_->slot_count(), std::vector<float>(model.weight_count())),
      next_step_(client.first_clock() * local.steps) {}

void LocalSteps::BeginRound() { std::ranges::copy(client_.weights(), weights_.begin()); }

Status LocalSteps::Backward(uint32_t index) {
  if (index == 0) overflow_ = false;
  const std::span<float> gradients = client_.gradients();
  std::ranges::fill(gradients, 0.0f);
  SLACKLINE_RETURN_IF_ERROR(model_.Backward(1, {}));
  const GradientCheck check = CheckGradient(gradients);
  overflow_ = overflow_ || !check.finite;
  norm_ = std::sqrt(check.sum_squares) / static_cast<double>(options_.batch);
  const float factor = ClipFactor(norm_, options_.clip_norm);
  if (index + 1 < options_.micro_batches) {
    tree_.AddLeaf(gradients, factor);
    return OkStatus();
  }
  tree_.FinishPart(gradients, 0, factor);
  tree_.Reset();
  Step();
  return OkStatus();
}

void LocalSteps::Step() {
  const auto rate = static_cast<float>(LearningRate(local_.schedule, next_step_++));
  if (overflow_) return;
  ++steps_taken_;
  const float scale = 1 / static_cast<float>(options_.batch * options_.micro_batches);
  size_t offset = 0;
  for (const ParameterInfo& parameter : model_.parameters()) {
    ParameterView view;
    view.weights = view.weights_out = weights_.data() + offset;
    if (slots_.size() > 0) view.slot0 = slots_[0].data() + offset;
    if (slots_.size() > 1) view.slot1 = slots_[1].data() + offset;
    view.count = static_cast<size_t>(parameter.count());
    view.decay = parameter.decay;
    optimizer_->Step(view, {.sum = client_.gradients().data() + offset, .scale = scale}, rate,
                     steps_taken_);
    offset += view.count;
  }
}

Result<GradientOutcome> LocalSteps::Push(Clock clock) {
  const auto samples = static_cast<float>(options_.batch * options_.micro_batches * local_.steps);
  const std::span<float> difference = client_.gradients();
  const std::span<const float> before = client_.weights();
  for (size_t i = 0; i < difference.size(); ++i) {
    difference[i] = (before[i] - weights_[i]) * samples;
  }
  GradientOutcome outcome;
  outcome.norm = norm_;
  outcome.overflow = !FitsCodec(CheckGradient(difference), options_.push_codec);
  StepOptions step;
  step.empty = outcome.overflow;
  step.weight = outcome.overflow ? 0 : samples;
  SLACKLINE_RETURN_ERR_IF_ERROR(client_.BeginStep(clock, step));
  for (const ChunkIndex chunk : client_.chunk_order()) {
    SLACKLINE_RETURN_ERR_IF_ERROR(client_.PushPull(chunk, outcome.overflow));
  }
  return outcome;
}

}  // namespace slackline::worker
