// A model that computes losses and gradients on flat memory that somebody else owns.
//
// Parameters are views of one flat span of weights, gradients of one flat span of gradients, both
// in the order of ModelParameters(): what a parameter server's client reads and writes needs no
// copy. The tensor library behind it does not show in this header.
//
//   model->Forward(batch, before_use);           // the loss, summed over samples
//   model->Backward(scale, on_gradient);         // adds scale * d(loss)/d(weights) to gradients
//
// A sample's loss is the mean over its targets (nats a token; a label has one target), and a
// batch's the sum over samples.
// Threading: one thread at a time. Ownership: the spans of Bind must outlive the model.
// Errors: InvalidArgument: the batch does not fit the model. Internal: the tensor library refused.
// A Status of a callback ends the call and is returned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/model/model_config.h"

namespace slackline::worker {

// Called before the parameters [first, last) are read by a forward pass: weights that are still on
// their way can be waited for layer by layer. Every parameter is covered before it is read.
using BeforeUse = std::function<Status(size_t first, size_t last)>;
// Called once for each parameter during Backward, when its gradient is complete and its weights are
// not read any more.
using OnGradient = std::function<Status(size_t parameter)>;

struct EvaluationSum {
  double loss = 0;  // Sum over samples.
  uint64_t samples = 0;
  uint64_t targets = 0;
  uint64_t correct = 0;  // Targets that have the largest logit.
};

struct GenerateOptions {
  std::string prompt = "\n";
  int64_t tokens = 200;      // To generate.
  double temperature = 0.8;  // 0: always the likeliest.
  int64_t top_k = 0;         // 0: all tokens.
  uint64_t seed = 1;
};

// How a model computes; weights, gradients and losses are FP32 in any case.
struct ModelOptions {
  // gpt: gradient checkpointing. A block keeps its input and is computed again in backward.
  bool recompute = false;
  // The type of matrix products, as libtorch's autocast picks operations for it.
  enum class Compute : uint8_t { kFp32, kBf16 } compute = Compute::kFp32;
};

// Whether this machine multiplies matrices of BF16 natively (AVX512-BF16 or AMX).
bool DeviceHasBf16();

class Model {
 public:
  // The config must be valid.
  static std::unique_ptr<Model> Create(const ModelConfig& config, const ModelOptions& options = {});
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  std::span<const ParameterInfo> parameters() const { return parameters_; }
  size_t weight_count() const { return weight_count_; }

  // Lays the parameters over the spans, weight_count() elements each. `gradients` may be empty for
  // a model that only evaluates. Once, before all below.
  virtual Status Bind(std::span<float> weights, std::span<float> gradients) = 0;

  // The batch's loss, kept for Backward.
  virtual Result<double> Forward(const Batch& batch, const BeforeUse& before_use) = 0;
  // Of the last Forward, once. Adds to gradients; the caller zeroes them.
  virtual Status Backward(float scale, const OnGradient& on_gradient) = 0;

  virtual Result<EvaluationSum> Evaluate(const Batch& batch) = 0;
  // The logits of a text batch, [samples * positions * vocabulary]; for tests and tools.
  virtual Result<std::vector<float>> Logits(const Batch& batch) = 0;
  // The continuation of the prompt, without it. Unimplemented for models that are not of text.
  virtual Result<std::string> Generate(const GenerateOptions& options) = 0;

 protected:
  explicit Model(const ModelConfig& config);

 private:
  ModelConfig config_;
  std::vector<ParameterInfo> parameters_;
  size_t weight_count_;
};

// Threads that the tensor library and its BLAS may use in this process; workers that share a
// machine want one each. `deterministic` refuses operations without a reproducible order. Call
// before the first Forward.
void ConfigureTensorLibrary(int threads, bool deterministic);

}  // namespace slackline::worker
