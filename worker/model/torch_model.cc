#include "worker/model/torch_model.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <utility>

namespace slackline::worker {
namespace {

// Carries a callback's Status through libtorch to the public function that is running.
struct CallbackFailed {
  Status status;
};

at::Tensor TargetsOf(const Batch& batch) {
  // from_blob wants a mutable pointer; targets are only read.
  return at::from_blob(const_cast<int64_t*>(batch.targets.data()),
                       {static_cast<int64_t>(batch.targets.size())}, at::kLong);
}

at::Tensor LossOf(const at::Tensor& logits, const Batch& batch) {
  const at::Tensor sum =
      at::cross_entropy_loss(logits, TargetsOf(batch), /*weight=*/{}, at::Reduction::Sum);
  return sum / static_cast<double>(batch.positions);
}

}  // namespace

template <typename Function>
Status TorchModel::Guarded(const char* what, Function&& function) {
  try {
    function();
    return OkStatus();
  } catch (const CallbackFailed& failed) {
    return failed.status;
  } catch (const c10::Error& error) {
    return Internal(std::string(what) + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Internal(std::string(what) + ": " + error.what());
  }
}

void TorchModel::RegisterHook(size_t index) {
  using torch::autograd::variable_list;
  auto accumulator = torch::autograd::impl::grad_accumulator(tensors_[index]);
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [this, index](const variable_list& outputs, const variable_list&) {
        // An error is kept, not thrown: backward has no use for half a graph, and the remaining
        // gradients cost less than an exception through the engine.
        if (on_gradient_ != nullptr && gradient_status_.ok()) {
          gradient_status_ = (*on_gradient_)(index);
        }
        return outputs;
      }));
  accumulators_.push_back(std::move(accumulator));
}

Status TorchModel::Bind(std::span<float> weights, std::span<float> gradients) {
  if (weights.size() != weight_count() ||
      (!gradients.empty() && gradients.size() != weight_count())) {
    return InvalidArgument("a model of " + std::to_string(weight_count()) +
                           " weights was given room for " + std::to_string(weights.size()));
  }
  return Guarded("bind", [&] {
    for (const ParameterInfo& parameter : parameters()) {
      const auto count = static_cast<size_t>(parameter.count());
      at::Tensor tensor = at::from_blob(weights.data(), parameter.shape, at::kFloat);
      weights = weights.subspan(count);
      if (!gradients.empty()) {
        tensor.set_requires_grad(true);
        // Backward adds to a gradient that is there already, in place.
        tensor.mutable_grad() = at::from_blob(gradients.data(), parameter.shape, at::kFloat);
        gradients = gradients.subspan(count);
      }
      tensors_.push_back(std::move(tensor));
      if (tensors_.back().requires_grad()) RegisterHook(tensors_.size() - 1);
    }
  });
}

void TorchModel::Need(size_t first, size_t last) {
  if (before_use_ == nullptr || !*before_use_) return;
  Status status = (*before_use_)(first, last);
  if (!status.ok()) throw CallbackFailed{std::move(status)};
}

at::Tensor TorchModel::LogitsOf(const Batch& batch, const BeforeUse& before_use) {
  before_use_ = &before_use;
  const Autocast autocast(compute_);
  at::Tensor logits = ComputeLogits(batch).to(at::kFloat);
  before_use_ = nullptr;
  return logits;
}

Result<double> TorchModel::Forward(const Batch& batch, const BeforeUse& before_use) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckBatch(batch));
  double loss = 0;
  SLACKLINE_RETURN_ERR_IF_ERROR(Guarded("forward", [&] {
    loss_ = LossOf(LogitsOf(batch, before_use), batch);
    loss = loss_.item<double>();
  }));
  return loss;
}

Status TorchModel::Backward(float scale, const OnGradient& on_gradient) {
  if (!loss_.defined()) return FailedPrecondition("backward without a forward before it");
  on_gradient_ = on_gradient ? &on_gradient : nullptr;
  gradient_status_ = OkStatus();
  Status status = Guarded("backward", [&] {
    loss_.backward(at::full({}, scale, loss_.options().requires_grad(false)));
  });
  loss_.reset();
  on_gradient_ = nullptr;
  return status.ok() ? std::exchange(gradient_status_, OkStatus()) : status;
}

Result<EvaluationSum> TorchModel::Evaluate(const Batch& batch) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckBatch(batch));
  EvaluationSum sum;
  SLACKLINE_RETURN_ERR_IF_ERROR(Guarded("evaluate", [&] {
    const at::NoGradGuard no_gradient;
    const at::Tensor logits = LogitsOf(batch, {});
    sum.loss = LossOf(logits, batch).item<double>();
    sum.samples = batch.samples;
    sum.targets = batch.targets.size();
    sum.correct =
        static_cast<uint64_t>(logits.argmax(-1).eq(TargetsOf(batch)).sum().item<int64_t>());
  }));
  return sum;
}

Result<std::vector<float>> TorchModel::Logits(const Batch& batch) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckBatch(batch));
  std::vector<float> values;
  SLACKLINE_RETURN_ERR_IF_ERROR(Guarded("logits", [&] {
    const at::NoGradGuard no_gradient;
    const at::Tensor logits = LogitsOf(batch, {}).contiguous();
    values.assign(logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel());
  }));
  return values;
}

bool DeviceHasBf16() { return __builtin_cpu_supports("avx512bf16") > 0; }

void ConfigureTensorLibrary(int threads, bool deterministic) {
  at::set_num_threads(threads);
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  // OpenBLAS has threads of its own, which libtorch's setting does not reach. It is looked up by
  // name, since any other BLAS may stand in for it.
  using SetThreads = void (*)(int);
  if (auto* set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) {
    set(threads);
  }
}

}  // namespace slackline::worker
