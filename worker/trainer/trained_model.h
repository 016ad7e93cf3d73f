// Reads a trained model back: from a checkpoint directory as the coordinator writes it, from a
// directory of such, or from the one file that slackline-merge makes of it.
// Threading: functions without shared state.
// Errors: NotFound: no checkpoint there. DataLoss: a file is damaged or its manifest is; both with
// the path. InvalidArgument: the checkpoint is not of a gpt or mlp that this build knows.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "worker/model/model_config.h"

namespace slackline::worker {

struct TrainedModel {
  ModelConfig config;
  std::vector<float> weights;  // The flat space, in the order of ModelParameters(config).
  std::string source;          // The file or directory that was read.
};

// `path`: a .safetensors file, a step-* directory, or a directory of those (the latest is taken).
Result<TrainedModel> ReadTrainedModel(const std::string& path);

}  // namespace slackline::worker
