// The training loop: data, model, gradients and the client put together.
//
//   forward, each layer waiting for its own weights   (the previous step's pulls end meanwhile)
//   close the previous step, report it
//   backward, each chunk leaving when it is complete
//
// Threading: Run() is the training thread; the stop flag may be set from a signal handler.
// Ownership: client and data must outlive the trainer.
// Errors: of Run(): Aborted: the job was ended or this worker was removed (or Cancel()); others as
// the client, the model and the data give them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "common/time_source.h"
#include "worker/client/client.h"
#include "worker/model/model.h"
#include "worker/trainer/data_pipeline.h"
#include "worker/trainer/evaluation.h"
#include "worker/trainer/gradient_pipeline.h"
#include "worker/trainer/local_steps.h"

namespace slackline::worker {

struct TrainerOptions {
  ModelConfig model;
  ModelOptions compute;
  GradientOptions gradient;
  LocalStepOptions local;
  GenerateOptions sample;                         // At the end, for models of text.
  uint64_t evaluate_samples = 512;                // At the end; 0: the whole validation split.
  int64_t log_every = 20;                         // Steps between log lines; 0: none.
  TimeNs finish_timeout_ns = 600 * kNsPerSecond;  // For the slower workers, at the end.
};

class Trainer {
 public:
  // `stop` ends the training after the step under way; the worker leaves before its time.
  Trainer(const TrainerOptions& options, const TrainingData& data, Client& client,
          const std::atomic<bool>& stop);
  ~Trainer();

  // From Declare to Leave.
  Status Run();
  // Past the start: a stop will be noticed after the step under way. Thread-safe.
  bool training() const { return training_.load(std::memory_order_relaxed); }

 private:
  // A step whose pulls may still be under way.
  struct OpenStep {
    Clock clock = 0;
    double loss_sum = 0;  // Over its samples.
    TimeNs began_ns = 0;
    GradientOutcome outcome;
  };

  Status Prepare();
  Status TrainLoop();
  Status TrainStep(Clock clock);
  // A clock of local steps.
  Status TrainRound(Clock clock);
  uint64_t MicroBatches() const;  // Of a clock.
  Status WaitForWeights(size_t first, size_t last);
  // Closes the open step, if there is one, and reports it.
  Status CloseStep();
  void Report(const OpenStep& step, const StepStats& stats);
  Status Finish();
  Status EvaluateForAll();

  const TrainerOptions options_;
  const TrainingData& data_;
  Client& client_;
  const std::atomic<bool>& stop_;
  SteadyTimeSource time_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<BatchBuilder> train_;
  std::unique_ptr<BatchBuilder> validation_;
  std::unique_ptr<DataPipeline> pipeline_;
  std::unique_ptr<GradientPipeline> gradients_;  // Or local_, as the options say.
  std::unique_ptr<LocalSteps> local_;
  std::unique_ptr<OpenStep> open_;
  std::vector<bool> chunk_waited_;  // For the open step.
  TimeNs last_closed_ns_ = 0;
  uint64_t partial_steps_ = 0;
  uint64_t overflows_ = 0;
  std::atomic<bool> training_{false};
};

}  // namespace slackline::worker
