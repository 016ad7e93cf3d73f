// What a model is: enough to build it again from a checkpoint. Kept as JSON in the job and in every
// checkpoint's manifest. No tensor library in here.
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace slackline::worker {

struct GptConfig {
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;  // A multiple of heads.
  int64_t context = 128;
  int64_t vocabulary = 256;

  friend bool operator==(const GptConfig&, const GptConfig&) = default;
};

struct MlpConfig {
  int64_t features = 0;
  int64_t classes = 0;
  std::vector<int64_t> hidden = {128};

  friend bool operator==(const MlpConfig&, const MlpConfig&) = default;
};

struct ModelConfig {
  enum class Kind : uint8_t { kGpt, kMlp };
  Kind kind = Kind::kGpt;
  GptConfig gpt;  // The one of `kind` counts.
  MlpConfig mlp;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// "gpt", "mlp".
std::string_view ModelKindName(ModelConfig::Kind kind);

// InvalidArgument names the field, its value and what is allowed.
Status ValidateModelConfig(const ModelConfig& config);

// One line; ParseModelConfig(ModelConfigJson(c)) == c for a valid c.
std::string ModelConfigJson(const ModelConfig& config);
// InvalidArgument: not ours, or a field out of its range.
Result<ModelConfig> ParseModelConfig(const std::string& text);

// A parameter, in the order of the flat space.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = true;  // Weight decay applies: matrices and tables, not biases and norms.

  int64_t count() const;
};

std::vector<ParameterInfo> ModelParameters(const ModelConfig& config);

// Writes initial weights for `parameters` (end to end) into `weights`, the same for the same seed
// on every machine. Matrices and tables are normal with deviation 0.02, those that write to the
// residual stream 0.02 / sqrt(2 layers) (gpt; Radford et al. 2019, "Language models are
// unsupervised multitask learners", section 2.3), and sqrt(2 / inputs) for mlp (He et al. 2015,
// "Delving deep into rectifiers", equation 10). Norm gains are 1, biases 0.
// weights.size() must be the sum of the parameters' counts.
void InitializeWeights(const ModelConfig& config, uint64_t seed, std::span<float> weights);

}  // namespace slackline::worker
