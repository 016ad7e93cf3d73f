// Optimizers on FP32 master weights: decode of the gradient and update in one pass over memory.
//
// Threading: an Optimizer is immutable; Step may run on any thread on memory nobody else touches.
// Sources of the formulas stand beside each OptimizerKind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "common/codec/codec.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline::server {

enum class OptimizerKind : uint8_t { kSgd, kMomentum, kNesterov, kAdam, kAdamW, kAdagrad };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // Coupled (L2) except AdamW (decoupled); only where a segment decays.
};

// The gradient of `count` elements: g[i] = (sum[i] + decode(payload)[i] * payload_scale) * scale.
// Either part may be absent (null), not both. In BSP the last push of a round comes as payload and
// the others as sum, so that it needs no pass of its own.
struct GradientView {
  const float* sum = nullptr;
  const std::byte* payload = nullptr;
  CodecId payload_codec = CodecId::kNone;  // A dense codec.
  float payload_scale = 1;                 // 1 / loss scale.
  float scale = 1;                         // 1 / divisor.
};

// The elements of one run with one weight-decay setting. Slots are the optimizer's state.
struct ParameterView {
  const float* weights = nullptr;  // w(t)
  float* weights_out = nullptr;    // w(t+1); may be `weights`, or memory that does not overlap it.
  float* slot0 = nullptr;          // momentum buffer, first moment, or Adagrad's sum.
  float* slot1 = nullptr;          // second moment.
  size_t count = 0;
  bool decay = false;
  std::byte* copy_out = nullptr;  // If set: w(t+1) also encoded here, in copy_codec (fp16, bf16).
  CodecId copy_codec = CodecId::kNone;
};

class Optimizer {
 public:
  // InvalidArgument names the hyperparameter, its value and what is allowed.
  static Result<std::unique_ptr<Optimizer>> Create(const OptimizerConfig& config);
  virtual ~Optimizer() = default;

  // State floats per parameter: 0, 1 or 2.
  virtual size_t slot_count() const = 0;
  // Names of the slots in checkpoints: "momentum", "first_moment", "second_moment", "square_sum".
  virtual std::string_view slot_name(size_t slot) const = 0;
  // One step. `step` counts this chunk's steps from 1 (bias correction). Pointers need the
  // alignment of their element type only. Allocates nothing.
  virtual void Step(const ParameterView& parameters, const GradientView& gradient,
                    float learning_rate, uint64_t step) const = 0;
};

Result<OptimizerKind> ParseOptimizerKind(std::string_view name);
std::string_view OptimizerKindName(OptimizerKind kind);

// Learning rate as a function of the clock. `total` and `warmup` in clocks.
struct ScheduleConfig {
  enum class Kind : uint8_t { kConstant, kCosine, kStep };
  Kind kind = Kind::kConstant;
  double learning_rate = 0.1;
  Clock warmup_steps = 0;       // Linear from learning_rate / warmup_steps; for every kind.
  Clock total_steps = 0;        // cosine: where it ends.
  double final_fraction = 0.1;  // cosine: of learning_rate at the end.
  Clock step_every = 0;         // step
  double step_factor = 0.1;     // step
};
Status ValidateSchedule(const ScheduleConfig& config);
double LearningRate(const ScheduleConfig& config, Clock clock);

}  // namespace slackline::server
