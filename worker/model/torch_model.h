// What gpt and mlp share: parameters as tensors over flat memory, loss, backward with its hooks,
// evaluation. The only header of this folder that includes libtorch; no other folder includes it.
//
// Threading and ownership: as Model. libtorch's exceptions end in the public functions here.
#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <memory>
#include <vector>

#include "worker/model/model.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace slackline::worker {

// BF16 where libtorch's autocast takes it, for as long as this lives.
class Autocast {
 public:
  explicit Autocast(ModelOptions::Compute compute) : was_on_(at::autocast::is_cpu_enabled()) {
    if (compute != ModelOptions::Compute::kBf16) return;
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(true);
  }
  ~Autocast() {
    if (was_on_ || !at::autocast::is_cpu_enabled()) return;
    at::autocast::set_cpu_enabled(false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool was_on_;
};

class TorchModel : public Model {
 public:
  Status Bind(std::span<float> weights, std::span<float> gradients) final;
  Result<double> Forward(const Batch& batch, const BeforeUse& before_use) final;
  Status Backward(float scale, const OnGradient& on_gradient) final;
  Result<EvaluationSum> Evaluate(const Batch& batch) final;
  Result<std::vector<float>> Logits(const Batch& batch) final;

 protected:
  TorchModel(const ModelConfig& config, const ModelOptions& options)
      : Model(config), compute_(options.compute) {}

  // The logits [samples * positions, classes] of a batch that fits the model. Calls
  // Need(first, last) before it reads those parameters.
  virtual at::Tensor ComputeLogits(const Batch& batch) = 0;
  // InvalidArgument unless ComputeLogits can take the batch.
  virtual Status CheckBatch(const Batch& batch) const = 0;

  ModelOptions::Compute compute() const { return compute_; }
  const at::Tensor& parameter(size_t index) const { return tensors_[index]; }
  // Waits for the parameters [first, last). Throws to the public function that is running.
  void Need(size_t first, size_t last);
  // Runs a function that may throw, and turns what it throws into a Status.
  template <typename Function>
  Status Guarded(const char* what, Function&& function);

 private:
  // Runs ComputeLogits with its weights waited for.
  at::Tensor LogitsOf(const Batch& batch, const BeforeUse& before_use);
  void RegisterHook(size_t index);

  const ModelOptions::Compute compute_;
  std::vector<at::Tensor> tensors_;
  // An accumulator lives only as long as somebody holds it, and the hooks hang on them.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  at::Tensor loss_;                          // Of the last Forward, until Backward.
  const BeforeUse* before_use_ = nullptr;    // While a forward pass runs.
  const OnGradient* on_gradient_ = nullptr;  // While Backward runs.
  Status gradient_status_;                   // The first error of on_gradient_.
};

}  // namespace slackline::worker
