// From backward to the servers: accumulates micro-gradients, checks and clips them, and pushes each
// chunk once, as soon as it is complete (overlap) or after all of them were checked (exact).
//
// Overlap: chunks leave while backward goes on, so that the clip factor can only be that of the
// previous step's norm, and an overflow that is found when other chunks have left already empties
// the chunks that are left: a partial step. Without overlap the norm is the step's own, and an
// overflow empties the whole step.
// Clipping is by micro-batch: each one's gradient, as the mean over its samples, is cut to the
// norm. What a worker pushes is then the same whether a micro-batch is one worker's clock or one of
// many that a worker accumulates.
// Threading: the training thread's. Ownership: client and model must outlive it; between BeginStep
// and the client's FinishStep the client's gradients() belong to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/status.h"
#include "worker/client/client.h"
#include "worker/model/model.h"
#include "worker/precision/gradient_check.h"
#include "worker/precision/loss_scaler.h"
#include "worker/precision/tree_accumulator.h"

namespace slackline::worker {

struct GradientOptions {
  uint32_t micro_batches = 1;  // A: accumulated before a push.
  uint64_t batch = 1;          // Samples in a micro-batch.
  double clip_norm = 0;        // 0: no clipping.
  bool overlap = true;
  CodecId push_codec = CodecId::kFp16;
  LossScaleOptions loss_scale;
};

// What became of a step's gradient.
struct GradientOutcome {
  bool overflow = false;  // Something was not finite or did not fit the codec.
  bool partial = false;   // Some chunks had left before the overflow was found.
  double norm = 0;        // Of the last micro-batch's mean gradient before clipping; 0: overflow.
  double scale = 1;       // The loss scale of the step.
};

class GradientPipeline {
 public:
  // After the client's Declare.
  GradientPipeline(const GradientOptions& options, Client& client, Model& model);

  // Runs backward of the model's last Forward for micro-batch `index` of the clock, 0 to A - 1 in
  // order. The last one begins the client's step and pushes every chunk.
  Status Backward(Clock clock, uint32_t index);
  // Of the clock whose last micro-batch was run; adapts the loss scale. Once a clock.
  GradientOutcome EndStep();

  uint64_t overflows() const { return scaler_.overflows(); }

 private:
  struct ChunkState {
    ChunkIndex index = 0;
    size_t offset = 0;  // In the flat space.
    size_t count = 0;
    size_t tensors = 0;    // With a part in the chunk.
    size_t remaining = 0;  // Of those, without a complete gradient yet.
  };

  Status AccumulateLeaf();
  Status BackwardOverlapped(Clock clock);
  Status BackwardExact(Clock clock);
  Status OnTensor(size_t tensor, float factor);
  // Folds the accumulated leaves into the chunk's gradient and checks the result.
  bool FinishChunk(const ChunkState& chunk, float factor);
  Status BeginStep(Clock clock, bool empty);
  Status BackwardInto(const OnGradient& on_gradient);
  double NormOf(const GradientCheck& check) const;
  std::span<float> GradientsOf(const ChunkState& chunk);

  const GradientOptions options_;
  Client& client_;
  Model& model_;
  LossScaler scaler_;
  TreeAccumulator tree_;
  std::vector<ChunkState> chunks_;  // By chunk index.
  GradientCheck leaf_;              // Of the running micro-batch, before clipping.
  double previous_norm_ = -1;       // Of the last step's last micro-batch; -1: none yet.
  bool overflow_ = false;           // In this step so far.
  size_t pushed_ = 0;               // Chunks that left with a gradient in this step.
};

}  // namespace slackline::worker
