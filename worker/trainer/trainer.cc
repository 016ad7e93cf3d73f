#include "worker/trainer/trainer.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace slackline::worker {
namespace {

// The order in which workers end: nobody leaves before all have trained.
constexpr const char* kTrainedBarrier = "trained";

size_t TokensOf(const ModelConfig& config) {
  return config.kind == ModelConfig::Kind::kGpt ? static_cast<size_t>(config.gpt.context) : 1;
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, const TrainingData& data, Client& client,
                 const std::atomic<bool>& stop)
    : options_(options), data_(data), client_(client), stop_(stop) {}

Trainer::~Trainer() = default;

Status Trainer::Run() {
  Status status = Prepare();
  if (status.ok()) status = TrainLoop();
  if (!status.ok()) {
    // Says goodbye if it still can: others need not wait for the lease to expire. The call that
    // failed decides the result.
    if (status.code() != StatusCode::kAborted) {
      const Status left = client_.Leave(false, status.message());
      if (!left.ok()) LOG(WARNING) << "leaving failed, too: " << left;
    }
    client_.Cancel(status.message());
    pipeline_.reset();
    return status;
  }
  if (stop_.load(std::memory_order_relaxed)) {
    pipeline_.reset();
    LOG(INFO) << "stopping before the last step, as asked";
    return client_.Leave(false, "stopped by a signal");
  }
  return Finish();
}

Status Trainer::Prepare() {
  const size_t context = TokensOf(options_.model);
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      auto train, BatchBuilder::Create(data_.train, context, client_.job().seed(), true));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(auto validation,
                                    BatchBuilder::Create(data_.validation, context, 0, false));
  train_ = std::make_unique<BatchBuilder>(train);
  validation_ = std::make_unique<BatchBuilder>(validation);

  model_ = Model::Create(options_.model, options_.compute);
  std::vector<TensorSpec> tensors;
  for (const ParameterInfo& parameter : model_->parameters()) {
    tensors.push_back({parameter.name, parameter.shape, parameter.decay});
  }
  SLACKLINE_RETURN_IF_ERROR(client_.Declare(std::move(tensors)));
  InitializeWeights(options_.model, client_.job().seed(), client_.weights());
  SLACKLINE_RETURN_IF_ERROR(client_.Initialize());
  if (options_.local.steps > 0) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(
        local_, LocalSteps::Create(options_.local, options_.gradient, client_, *model_));
  } else {
    SLACKLINE_RETURN_IF_ERROR(model_->Bind(client_.weights(), client_.gradients()));
    gradients_ = std::make_unique<GradientPipeline>(options_.gradient, client_, *model_);
  }
  chunk_waited_.assign(client_.chunk_order().size(), true);
  return OkStatus();
}

Status Trainer::TrainLoop() {
  if (client_.first_clock() >= client_.job().steps()) return OkStatus();
  pipeline_ = std::make_unique<DataPipeline>(*train_, client_, options_.gradient.batch,
                                             static_cast<uint32_t>(MicroBatches()));
  last_closed_ns_ = time_.NowNs();
  training_.store(true, std::memory_order_relaxed);
  for (Clock clock = client_.first_clock(); clock < client_.job().steps(); ++clock) {
    if (stop_.load(std::memory_order_relaxed)) break;
    SLACKLINE_RETURN_IF_ERROR(local_ ? TrainRound(clock) : TrainStep(clock));
  }
  return CloseStep();
}

Status Trainer::TrainStep(Clock clock) {
  OpenStep step;
  step.clock = clock;
  for (uint32_t index = 0; index < options_.gradient.micro_batches; ++index) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<Batch> batch, pipeline_->Next());
    BeforeUse before_use;
    if (index == 0) {
      before_use = [this](size_t first, size_t last) { return WaitForWeights(first, last); };
    }
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const double loss, model_->Forward(*batch, before_use));
    step.loss_sum += loss;
    // Backward writes where the previous step's pushes are read from.
    if (index == 0) SLACKLINE_RETURN_IF_ERROR(CloseStep());
    SLACKLINE_RETURN_IF_ERROR(gradients_->Backward(clock, index));
    pipeline_->Recycle(std::move(batch));
  }
  step.outcome = gradients_->EndStep();
  std::fill(chunk_waited_.begin(), chunk_waited_.end(), false);
  open_ = std::make_unique<OpenStep>(step);
  return OkStatus();
}

Status Trainer::TrainRound(Clock clock) {
  SLACKLINE_RETURN_IF_ERROR(CloseStep());
  local_->BeginRound();
  OpenStep step;
  step.clock = clock;
  for (uint64_t count = 0; count < MicroBatches(); ++count) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<Batch> batch, pipeline_->Next());
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const double loss, model_->Forward(*batch, {}));
    step.loss_sum += loss;
    const auto index = static_cast<uint32_t>(count % options_.gradient.micro_batches);
    SLACKLINE_RETURN_IF_ERROR(local_->Backward(index));
    pipeline_->Recycle(std::move(batch));
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(step.outcome, local_->Push(clock));
  open_ = std::make_unique<OpenStep>(step);
  return OkStatus();
}

uint64_t Trainer::MicroBatches() const {
  return uint64_t{options_.gradient.micro_batches} * std::max(options_.local.steps, 1u);
}

Status Trainer::WaitForWeights(size_t first, size_t last) {
  for (size_t tensor = first; tensor < last; ++tensor) {
    for (const ChunkIndex chunk : client_.tensor_chunks(tensor)) {
      if (chunk_waited_[chunk]) continue;
      SLACKLINE_RETURN_IF_ERROR(client_.WaitChunk(chunk));
      chunk_waited_[chunk] = true;
    }
  }
  return OkStatus();
}

Status Trainer::CloseStep() {
  if (!open_) return OkStatus();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const StepStats stats, client_.FinishStep());
  pipeline_->StepAnswered();
  Report(*open_, stats);
  open_.reset();
  std::fill(chunk_waited_.begin(), chunk_waited_.end(), true);
  return OkStatus();
}

void Trainer::Report(const OpenStep& step, const StepStats& stats) {
  const TimeNs now = time_.NowNs();
  const uint64_t samples = options_.gradient.batch * MicroBatches();
  control::StepReport report;
  report.set_clock(step.clock);
  report.set_loss(step.loss_sum / static_cast<double>(samples));
  report.set_seconds(static_cast<double>(now - last_closed_ns_) / kNsPerSecond);
  report.set_samples(samples);
  report.set_tokens(samples * TokensOf(options_.model));
  report.set_bytes_pushed(stats.bytes_pushed);
  report.set_bytes_pulled(stats.bytes_pulled);
  report.set_loss_scale(step.outcome.scale);
  report.set_empty(step.outcome.overflow);
  report.set_gradient_norm(step.outcome.norm);
  Clock slowest = 0;
  for (const auto& [staleness, chunks] : stats.staleness) {
    auto* count = report.add_staleness();
    count->set_staleness(staleness);
    count->set_chunks(chunks);
    slowest = std::max(slowest, staleness);
  }
  client_.Report(report);

  if (step.outcome.partial) ++partial_steps_;
  if (step.outcome.overflow) ++overflows_;
  if (step.outcome.overflow) {
    LOG(INFO) << "step " << step.clock << ": overflow at loss scale " << step.outcome.scale
              << (step.outcome.partial ? ", the rest of the step was" : ", the step was")
              << " pushed empty (" << overflows_ << " such steps, " << partial_steps_
              << " of them partial)";
  }
  const bool last = step.clock + 1 == client_.job().steps();
  if (options_.log_every > 0 && (step.clock % options_.log_every == 0 || last)) {
    LOG(INFO) << "step " << step.clock + 1 << "/" << client_.job().steps() << " loss "
              << report.loss() << " norm " << step.outcome.norm << " tokens/s "
              << static_cast<double>(report.tokens()) / report.seconds() << " staleness " << slowest
              << " waited " << static_cast<double>(stats.wait_ns) / kNsPerMs << " ms";
  }
  last_closed_ns_ = now;
}

Status Trainer::Finish() {
  pipeline_.reset();
  SLACKLINE_RETURN_IF_ERROR(client_.Barrier(kTrainedBarrier, options_.finish_timeout_ns));
  if (client_.lowest_live_rank()) SLACKLINE_RETURN_IF_ERROR(EvaluateForAll());
  return client_.Leave(true, "trained");
}

Status Trainer::EvaluateForAll() {
  SLACKLINE_RETURN_IF_ERROR(client_.PullAll());
  if (local_) local_->BeginRound();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      const EvaluationResult result,
      EvaluateModel(*model_, *validation_, options_.evaluate_samples));
  control::FinalReport report;
  report.set_has_validation_loss(true);
  report.set_validation_loss(result.loss);
  LOG(INFO) << "validation loss " << result.loss << " over " << result.samples
            << " samples, accuracy " << result.accuracy;
  if (options_.model.kind == ModelConfig::Kind::kGpt) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const std::string text, model_->Generate(options_.sample));
    report.set_sample(ToValidUtf8(options_.sample.prompt + text));
  }
  return client_.ReportFinal(report);
}

}  // namespace slackline::worker
