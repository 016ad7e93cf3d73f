#include "worker/model/model_config.h"

#include <glog/logging.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/random.h"

namespace slackline::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLayers = 256;
constexpr int64_t kMaxWidth = 32768;
constexpr int64_t kMaxContext = 65536;
constexpr size_t kMaxHidden = 64;

Status CheckField(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument("model field '" + std::string(field) + "' = " + std::to_string(value) +
                         ": expected from " + std::to_string(low) + " to " + std::to_string(high));
}

Status ValidateGpt(const GptConfig& config) {
  SLACKLINE_RETURN_IF_ERROR(CheckField("layers", config.layers, 1, kMaxLayers));
  SLACKLINE_RETURN_IF_ERROR(CheckField("width", config.width, 1, kMaxWidth));
  SLACKLINE_RETURN_IF_ERROR(CheckField("heads", config.heads, 1, config.width));
  SLACKLINE_RETURN_IF_ERROR(CheckField("context", config.context, 1, kMaxContext));
  SLACKLINE_RETURN_IF_ERROR(CheckField("vocabulary", config.vocabulary, 2, 256));
  if (config.width % config.heads != 0) {
    return InvalidArgument("model field 'width' = " + std::to_string(config.width) +
                           ": expected a multiple of heads = " + std::to_string(config.heads));
  }
  return OkStatus();
}

Status ValidateMlp(const MlpConfig& config) {
  SLACKLINE_RETURN_IF_ERROR(CheckField("features", config.features, 1, 1 << 20));
  SLACKLINE_RETURN_IF_ERROR(CheckField("classes", config.classes, 1, 256));
  SLACKLINE_RETURN_IF_ERROR(CheckField("hidden (layers)",
                                       static_cast<int64_t>(config.hidden.size()), 0,
                                       static_cast<int64_t>(kMaxHidden)));
  for (const int64_t width : config.hidden) {
    SLACKLINE_RETURN_IF_ERROR(CheckField("hidden", width, 1, kMaxWidth));
  }
  return OkStatus();
}

std::vector<ParameterInfo> GptParameters(const GptConfig& config) {
  const int64_t w = config.width;
  std::vector<ParameterInfo> list;
  list.push_back({"embedding.token.weight", {config.vocabulary, w}, true});
  list.push_back({"embedding.position.weight", {config.context, w}, true});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    list.push_back({block + "norm1.weight", {w}, false});
    list.push_back({block + "norm1.bias", {w}, false});
    list.push_back({block + "attention.qkv.weight", {3 * w, w}, true});
    list.push_back({block + "attention.qkv.bias", {3 * w}, false});
    list.push_back({block + "attention.out.weight", {w, w}, true});
    list.push_back({block + "attention.out.bias", {w}, false});
    list.push_back({block + "norm2.weight", {w}, false});
    list.push_back({block + "norm2.bias", {w}, false});
    list.push_back({block + "mlp.up.weight", {4 * w, w}, true});
    list.push_back({block + "mlp.up.bias", {4 * w}, false});
    list.push_back({block + "mlp.down.weight", {w, 4 * w}, true});
    list.push_back({block + "mlp.down.bias", {w}, false});
  }
  list.push_back({"norm.weight", {w}, false});
  list.push_back({"norm.bias", {w}, false});
  return list;
}

std::vector<ParameterInfo> MlpParameters(const MlpConfig& config) {
  std::vector<int64_t> widths{config.features};
  widths.insert(widths.end(), config.hidden.begin(), config.hidden.end());
  widths.push_back(config.classes);
  std::vector<ParameterInfo> list;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    list.push_back({layer + "weight", {widths[i + 1], widths[i]}, true});
    list.push_back({layer + "bias", {widths[i + 1]}, false});
  }
  return list;
}

// The deviation of a parameter's initial values, or 0 for one that starts constant.
double InitialDeviation(const ModelConfig& config, const ParameterInfo& parameter) {
  if (parameter.shape.size() < 2) return 0;
  if (config.kind == ModelConfig::Kind::kMlp) {
    return std::sqrt(2.0 / static_cast<double>(parameter.shape[1]));
  }
  const bool residual = parameter.name.ends_with("attention.out.weight") ||
                        parameter.name.ends_with("mlp.down.weight");
  return residual ? 0.02 / std::sqrt(2.0 * static_cast<double>(config.gpt.layers)) : 0.02;
}

}  // namespace

std::string_view ModelKindName(ModelConfig::Kind kind) {
  return kind == ModelConfig::Kind::kGpt ? "gpt" : "mlp";
}

Status ValidateModelConfig(const ModelConfig& config) {
  return config.kind == ModelConfig::Kind::kGpt ? ValidateGpt(config.gpt) : ValidateMlp(config.mlp);
}

std::string ModelConfigJson(const ModelConfig& config) {
  if (config.kind == ModelConfig::Kind::kMlp) {
    return json{{"model", "mlp"},
                {"features", config.mlp.features},
                {"classes", config.mlp.classes},
                {"hidden", config.mlp.hidden}}
        .dump();
  }
  return json{{"model", "gpt"},
              {"layers", config.gpt.layers},
              {"heads", config.gpt.heads},
              {"width", config.gpt.width},
              {"context", config.gpt.context},
              {"vocabulary", config.gpt.vocabulary}}
      .dump();
}

Result<ModelConfig> ParseModelConfig(const std::string& text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Err(InvalidArgument("the model's configuration is not JSON"));
  // A field that is missing or no number becomes -1, which no field allows.
  const auto number = [&root](const char* key) {
    const auto found = root.find(key);
    return found != root.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
  };
  const auto model = root.find("model");
  ModelConfig config;
  if (model != root.end() && *model == "gpt") {
    config.gpt = {number("layers"), number("heads"), number("width"), number("context"),
                  number("vocabulary")};
  } else if (model != root.end() && *model == "mlp") {
    config.kind = ModelConfig::Kind::kMlp;
    config.mlp = {number("features"), number("classes"), {}};
    const auto hidden = root.find("hidden");
    if (hidden == root.end() || !hidden->is_array()) {
      return Err(InvalidArgument("model field 'hidden': expected a list of widths"));
    }
    for (const json& width : *hidden) {
      config.mlp.hidden.push_back(width.is_number_integer() ? width.get<int64_t>() : -1);
    }
  } else {
    return Err(InvalidArgument("model field 'model': expected gpt or mlp, found " +
                               (model == root.end() ? "none" : model->dump().substr(0, 60))));
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(ValidateModelConfig(config));
  return config;
}

int64_t ParameterInfo::count() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<ParameterInfo> ModelParameters(const ModelConfig& config) {
  return config.kind == ModelConfig::Kind::kGpt ? GptParameters(config.gpt)
                                                : MlpParameters(config.mlp);
}

void InitializeWeights(const ModelConfig& config, uint64_t seed, std::span<float> weights) {
  uint64_t index = 0;
  for (const ParameterInfo& parameter : ModelParameters(config)) {
    const auto count = static_cast<size_t>(parameter.count());
    CHECK_LE(count, weights.size()) << "the flat space is smaller than the model";
    const double deviation = InitialDeviation(config, parameter);
    const float constant = parameter.name.ends_with(".weight") ? 1.0f : 0.0f;
    // A stream of its own for each parameter: adding a layer leaves the others' values.
    Rng rng(Mix64(seed ^ Mix64(++index)));
    for (float& weight : weights.first(count)) {
      weight = deviation > 0 ? static_cast<float>(deviation * rng.Normal()) : constant;
    }
    weights = weights.subspan(count);
  }
  CHECK(weights.empty()) << "the flat space is larger than the model";
}

}  // namespace slackline::worker
