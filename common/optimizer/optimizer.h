// Optimizers on FP32 master weights: decode of the gradient and update in one pass over memory.
//
// Threading: an Optimizer is immutable; Step may run on any thread on memory nobody else touches.
// Results are the same bits on every processor (see update_kernels.h). Sources of the formulas
// stand beside each OptimizerKind. Errors: bad settings are refused by Create and
// ValidateSchedule; a wrong pointer, slot or codec in Step is a bug of the caller and is CHECKed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "common/codec/codec.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline {

// g is the gradient, w the weights, r the learning rate, l weight_decay, m momentum, b1 and b2 the
// betas, e epsilon, t the step. Where a segment decays, all but AdamW first add l*w to g.
enum class OptimizerKind : uint8_t {
  kSgd,       // w -= r*g
  kMomentum,  // v = m*v + g; w -= r*v. Polyak 1964 (heavy ball), with r outside v as in PyTorch.
  kNesterov,  // v = m*v + g; w -= r*(g + m*v). Sutskever et al. 2013, in PyTorch's form.
  kAdam,      // Kingma and Ba 2015, algorithm 1: p = b1*p + (1-b1)*g; q = b2*q + (1-b2)*g^2;
              // w -= r * p/(1-b1^t) / (sqrt(q/(1-b2^t)) + e).
  kAdamW,     // Loshchilov and Hutter 2019, algorithm 2: w *= 1 - r*l, then as Adam. The decay
              // follows r and its schedule.
  kAdagrad,   // Duchi et al. 2011: s += g^2; w -= r * g / (sqrt(s) + e).
  // Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling", arXiv 2401.09135,
  // algorithm 3, with period N and activation c: d += g; in every N-th step v = m*v + d/N, d = 0,
  // and w -= r * ((1 - c*N + c)*m*v + g/N); in the others w -= r * (c*m*v + g/N).
  kDelayedNesterov,
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  uint32_t period = 1;      // kDelayedNesterov: N.
  double activation = 0;    // kDelayedNesterov: c, at most 1 / N.
  double weight_decay = 0;  // Coupled (L2) except AdamW (decoupled); only where a segment decays.
  // Fields that the kind does not use may hold anything.
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
  float* slot1 = nullptr;          // second moment, or the delayed sum.
  size_t count = 0;
  bool decay = false;
  // If set: w(t+1) is also encoded here, in copy_codec (fp16, bf16), as Codec::Encode with scale 1
  // does it: a weight that does not fit becomes the largest finite value.
  std::byte* copy_out = nullptr;
  CodecId copy_codec = CodecId::kNone;
};

class Optimizer {
 public:
  // InvalidArgument names the hyperparameter, its value and what is allowed.
  static Result<std::unique_ptr<Optimizer>> Create(const OptimizerConfig& config);
  virtual ~Optimizer() = default;

  // State floats per parameter: 0, 1 or 2.
  virtual size_t slot_count() const = 0;
  // Names of the slots in checkpoints: "momentum", "first_moment", "second_moment", "square_sum",
  // "delayed_sum".
  virtual std::string_view slot_name(size_t slot) const = 0;
  // One step. `step` counts this chunk's steps from 1 (bias correction). Pointers need the
  // alignment of their element type only. Allocates nothing.
  virtual void Step(const ParameterView& parameters, const GradientView& gradient,
                    float learning_rate, uint64_t step) const = 0;
};

Result<OptimizerKind> ParseOptimizerKind(std::string_view name);
std::string_view OptimizerKindName(OptimizerKind kind);

// Learning rate as a function of the clock: linear warm-up, then the kind's curve. All counts are
// of clocks, from clock 0.
struct ScheduleConfig {
  enum class Kind : uint8_t { kConstant, kCosine, kStep };
  Kind kind = Kind::kConstant;
  double learning_rate = 0.1;
  Clock warmup_steps = 0;  // Linear from learning_rate / warmup_steps; for every kind.
  // cosine, from the end of the warm-up to total_steps (Loshchilov and Hutter 2017, equation 5,
  // without restarts), and constant from there:
  // learning_rate * (final_fraction + (1 - final_fraction) * (1 + cos(pi * progress)) / 2).
  Clock total_steps = 0;
  double final_fraction = 0.1;
  // step: learning_rate * step_factor ^ floor(clock / step_every).
  Clock step_every = 0;
  double step_factor = 0.1;
};
// InvalidArgument names the setting, its value and what is allowed.
Status ValidateSchedule(const ScheduleConfig& config);
// Of a valid config; a clock below 0 counts as 0.
double LearningRate(const ScheduleConfig& config, Clock clock);

}  // namespace slackline
