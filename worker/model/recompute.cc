#include "worker/model/recompute.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace slackline::worker {
namespace {

struct RecomputeNode : public torch::autograd::Node {
  RecomputeNode(ModelPart part_in, const at::Tensor& x)
      : part(std::move(part_in)), input(x.detach()) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::AutoGradMode with_gradients(true);
    at::Tensor x = input.detach().requires_grad_(true);
    part(x).backward(gradients[0]);
    return {x.grad()};
  }

  ModelPart part;
  at::Tensor input;
};

}  // namespace

at::Tensor Recomputed(ModelPart part, const at::Tensor& x) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return part(x);
  at::Tensor y;
  {
    const at::NoGradGuard no_gradients;
    y = part(x);
  }
  auto node = std::make_shared<RecomputeNode>(std::move(part), x);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace slackline::worker
