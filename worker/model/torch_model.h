// What gpt and mlp share: parameters as tensors over flat memory, loss, backward with its hooks,
// evaluation. The only header of this folder that includes libtorch; no other folder includes it.
//
// Threading and ownership: as Model. libtorch's exceptions end in the public functions here.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "worker/model/model.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace slackline::worker {

class TorchModel : public Model {
 public:
  Status Bind(std::span<float> weights, std::span<float> gradients) final;
  Result<double> Forward(const Batch& batch, const BeforeUse& before_use) final;
  Status Backward(float scale, const OnGradient& on_gradient) final;
  Result<EvaluationSum> Evaluate(const Batch& batch) final;
  Result<std::vector<float>> Logits(const Batch& batch) final;

 protected:
  using Model::Model;

  // The logits [samples * positions, classes] of a batch that fits the model. Calls
  // Need(first, last) before it reads those parameters.
  virtual at::Tensor ComputeLogits(const Batch& batch) = 0;
  // InvalidArgument unless ComputeLogits can take the batch.
  virtual Status CheckBatch(const Batch& batch) const = 0;

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

  std::vector<at::Tensor> tensors_;
  // An accumulator lives only as long as somebody holds it, and the hooks hang on them.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  at::Tensor loss_;                          // Of the last Forward, until Backward.
  const BeforeUse* before_use_ = nullptr;    // While a forward pass runs.
  const OnGradient* on_gradient_ = nullptr;  // While Backward runs.
  Status gradient_status_;                   // The first error of on_gradient_.
};

}  // namespace slackline::worker
