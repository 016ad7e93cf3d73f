#include "worker/model/model.h"

#include <glog/logging.h>

#include "worker/model/model_factories.h"

namespace slackline::worker {

Model::Model(const ModelConfig& config)
    : config_(config), parameters_(ModelParameters(config)), weight_count_(0) {
  for (const ParameterInfo& parameter : parameters_) {
    weight_count_ += static_cast<size_t>(parameter.count());
  }
}

std::unique_ptr<Model> Model::Create(const ModelConfig& config, const ModelOptions& options) {
  const Status status = ValidateModelConfig(config);
  CHECK(status.ok()) << status;
  return config.kind == ModelConfig::Kind::kGpt ? MakeGpt(config, options)
                                                : MakeMlp(config, options);
}

}  // namespace slackline::worker
