// The fused loops of the optimizers, compiled for every SIMD target and chosen at run time.
//
// An update reads the gradient in its wire format, the weights and the state once, and writes
// weights and state once. Constants are worked out once a step in double precision and rounded to
// FP32; the loop itself rounds every operation once (no fused multiply-add), so results are
// bit-identical on every processor and equal to common/optimizer/reference.h.
// Threading: pure functions on memory nobody else touches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/optimizer/optimizer.h"

namespace slackline {

// What a step needs besides its arrays.
struct UpdateConstants {
  float learning_rate = 0;
  float momentum = 0;
  float coupled_decay = 0;     // L2: g += coupled_decay * w. 0 where nothing decays.
  float decoupled_factor = 1;  // AdamW: w *= decoupled_factor. 1 where nothing decays.
  float beta1 = 0;
  float one_minus_beta1 = 1;
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float step_size = 0;           // learning_rate / (1 - beta1^step)
  float inverse_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^step)
  float epsilon = 0;
  // Delayed Nesterov.
  bool ends_period = false;
  float momentum_share = 0;  // Of the buffer in this step: m times 1 - c*N + c, or c.
  float inverse_period = 1;
};

UpdateConstants ComputeConstants(const OptimizerConfig& config, bool decay, float learning_rate,
                                 uint64_t step);

// Updates parameters.count elements, a multiple of kUpdateMultiple; ignores copy_out. The views are
// otherwise as for Optimizer::Step.
inline constexpr size_t kUpdateMultiple = 16;
using UpdateFunction = void (*)(const ParameterView& parameters, const GradientView& gradient,
                                const UpdateConstants& constants);

// The loop for one optimizer and one payload format; kNone when the gradient is only a sum.
UpdateFunction FindUpdate(OptimizerKind kind, CodecId payload_codec);

}  // namespace slackline
