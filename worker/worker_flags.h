// The flags of slackline-worker, as validated options. For its main.cc only.
//
// A flag that is wrong ends the process with exit code 2 and one line that names it, its value and
// what is allowed. ParseWorkerFlags checks all that can be checked without data; only whether the
// model fits the data is left to ModelFromFlags.
// Threading: before other threads start.
#pragma once

#include <cstdint>
#include <string>

#include "proto/control.pb.h"
#include "worker/client/client.h"
#include "worker/trainer/trainer.h"

namespace slackline::worker {

enum class Mode : uint8_t { kTrain, kEvaluate, kGenerate };

struct ProcessFlags {
  std::string data;
  std::string checkpoint;
  int threads = 1;
  bool deterministic = false;
  uint64_t seed = 1;
  uint64_t evaluate_samples = 0;
  std::string wanted_model;  // Empty: --model was not given.
};

void ParseWorkerFlags(int argc, char** argv);

Mode ModeFromFlags();
ProcessFlags ProcessFromFlags();
ModelConfig ModelFromFlags(const DataShape& data);
GenerateOptions GenerateFromFlags();
TrainerOptions TrainerFromFlags(const ModelConfig& model, const control::JobSpec& job);
control::JobSpec JobFromFlags(const ModelConfig& model, const DataManifest& data,
                              uint64_t train_samples);
ClientOptions ClientFromFlags(control::JobSpec job);

}  // namespace slackline::worker
