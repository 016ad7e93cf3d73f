// One safetensors file with the model's own tensors, from a checkpoint's shard files.
#pragma once

#include <string>

#include "common/status.h"

namespace slackline::server {

// Verifies the checkpoint, then streams its weights (not the optimizer state) into `output`, which
// appears whole or not at all. Metadata of the result: format, model, model_config, clock, run_id.
// Errors name the file that is damaged or missing.
Status MergeCheckpoint(const std::string& directory, const std::string& output);

}  // namespace slackline::server
