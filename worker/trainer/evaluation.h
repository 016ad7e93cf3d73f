// Validation loss and samples of a model with bound weights.
// Threading: the training thread's.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/model/model.h"

namespace slackline::worker {

struct EvaluationResult {
  double loss = 0;      // Mean over samples: nats a token, or a label.
  double accuracy = 0;  // Part of the targets that have the largest logit.
  uint64_t samples = 0;
};

// Evaluates `limit` samples spread evenly over the data; all of them for 0.
Result<EvaluationResult> EvaluateModel(Model& model, const BatchBuilder& validation,
                                       uint64_t limit);

// The text with every byte that is not part of valid UTF-8 replaced by '?': a model of bytes may
// write anything, and messages, terminals and JSON want text.
std::string ToValidUtf8(const std::string& text);

}  // namespace slackline::worker
