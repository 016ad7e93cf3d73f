#include "common/optimizer/reference.h"

#include <cmath>

#include "common/codec/reference.h"
#include "common/optimizer/update_kernels.h"

namespace slackline::reference {
namespace {

float GradientAt(const GradientView& gradient, size_t i) {
  if (gradient.payload == nullptr) return gradient.sum[i] * gradient.scale;
  float value = slackline::reference::DecodeOne(gradient.payload_codec, gradient.payload, i) *
                gradient.payload_scale;
  if (gradient.sum != nullptr) value = gradient.sum[i] + value;
  return value * gradient.scale;
}

// The Adam step from weights `w`, which AdamW has decayed before.
float Adam(float w, float g, float* first, float* second, const UpdateConstants& c) {
  *first = c.beta1 * *first + c.one_minus_beta1 * g;
  *second = c.beta2 * *second + c.one_minus_beta2 * (g * g);
  return w - c.step_size * (*first / (std::sqrt(*second) * c.inverse_sqrt_bias2 + c.epsilon));
}

float Update(OptimizerKind kind, float w, float g, float* slot0, float* slot1,
             const UpdateConstants& c) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return w - c.learning_rate * g;
    case OptimizerKind::kMomentum:
      *slot0 = c.momentum * *slot0 + g;
      return w - c.learning_rate * *slot0;
    case OptimizerKind::kNesterov:
      *slot0 = c.momentum * *slot0 + g;
      return w - c.learning_rate * (g + c.momentum * *slot0);
    case OptimizerKind::kDelayedNesterov:
      *slot1 = *slot1 + g;
      if (c.ends_period) {
        *slot0 = c.momentum * *slot0 + *slot1 * c.inverse_period;
        *slot1 = 0;
      }
      return w - c.learning_rate * (c.momentum_share * *slot0 + g * c.inverse_period);
    case OptimizerKind::kAdam:
      return Adam(w, g, slot0, slot1, c);
    case OptimizerKind::kAdamW:
      return Adam(w * c.decoupled_factor, g, slot0, slot1, c);
    case OptimizerKind::kAdagrad:
      *slot0 = *slot0 + g * g;
      return w - c.learning_rate * (g / (std::sqrt(*slot0) + c.epsilon));
  }
  return w;
}

}  // namespace

void Step(const OptimizerConfig& config, const ParameterView& parameters,
          const GradientView& gradient, float learning_rate, uint64_t step) {
  const UpdateConstants constants = ComputeConstants(config, parameters.decay, learning_rate, step);
  for (size_t i = 0; i < parameters.count; ++i) {
    const float w = parameters.weights[i];
    float g = GradientAt(gradient, i);
    if (constants.coupled_decay != 0) g = g + constants.coupled_decay * w;
    float* slot0 = parameters.slot0 == nullptr ? nullptr : parameters.slot0 + i;
    float* slot1 = parameters.slot1 == nullptr ? nullptr : parameters.slot1 + i;
    parameters.weights_out[i] = Update(config.kind, w, g, slot0, slot1, constants);
  }
  if (parameters.copy_out != nullptr) {
    slackline::reference::Encode(parameters.copy_codec, parameters.weights_out, parameters.count, 1,
                                 parameters.copy_out);
  }
}

}  // namespace slackline::reference
