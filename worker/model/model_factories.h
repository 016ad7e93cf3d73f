// Where Model::Create finds the models.
#pragma once

#include <memory>

#include "worker/model/model.h"

namespace slackline::worker {

std::unique_ptr<Model> MakeGpt(const ModelConfig& config, const ModelOptions& options);
std::unique_ptr<Model> MakeMlp(const ModelConfig& config, const ModelOptions& options);

}  // namespace slackline::worker
