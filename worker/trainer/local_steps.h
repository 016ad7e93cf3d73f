// Local steps: a worker takes H steps of its own optimizer on its own copy of the weights, then
// pushes how far they went, the mean over workers of which is the gradient of the servers' outer
// optimizer. A clock is one such round, so that the network carries an H-th of the bytes.
// (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv
// 2311.08105, algorithm 1.)
//
// The optimizer's state stays at the worker from round to round, and starts anew with the process.
// A gradient that is not finite makes no local step. The difference is pushed times the samples
// behind it, as a gradient is, so that the servers' mean is weighted by them.
// Threading: the training thread's. Ownership: client and model must outlive it.
#pragma once

#include <memory>
#include <vector>

#include "common/optimizer/optimizer.h"
#include "worker/client/client.h"
#include "worker/model/model.h"
#include "worker/precision/tree_accumulator.h"
#include "worker/trainer/gradient_pipeline.h"

namespace slackline::worker {

struct LocalStepOptions {
  uint32_t steps = 0;  // H; 0: no local steps, gradients are pushed.
  OptimizerConfig optimizer;
  ScheduleConfig schedule;  // Of local steps: step h of clock c counts as c * H + h.
};

class LocalSteps {
 public:
  // After the client's Declare and Initialize. Binds the model to its own weights and the client's
  // gradients. InvalidArgument: the optimizer's or schedule's settings.
  static Result<std::unique_ptr<LocalSteps>> Create(const LocalStepOptions& local,
                                                    const GradientOptions& gradient, Client& client,
                                                    Model& model);

  // Takes the client's weights, which the previous round's pulls have filled.
  void BeginRound();
  // Runs backward of the model's last Forward for micro-batch `index` of the local step, 0 to
  // micro_batches - 1 in order; the last one takes the step.
  Status Backward(uint32_t index);
  // After H of them: pushes the difference as the clock's step. Once a round.
  Result<GradientOutcome> Push(Clock clock);

 private:
  LocalSteps(const LocalStepOptions& local, const GradientOptions& gradient, Client& client,
             Model& model, std::unique_ptr<Optimizer> optimizer);
  void Step();

  const LocalStepOptions local_;
  const GradientOptions options_;
  Client& client_;
  Model& model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TreeAccumulator tree_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> slots_;  // Of the optimizer.
  Clock next_step_ = 0;                    // By the schedule.
  uint64_t steps_taken_ = 0;               // By the optimizer.
  bool overflow_ = false;                  // In the local step so far.
  double norm_ = 0;  // Of the last micro-batch's mean gradient, before clipping.
};

}  // namespace slackline::worker
