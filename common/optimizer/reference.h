// The optimizers one value at a time in plain C++: the oracle that tests hold the fused SIMD loops
// to, bit for bit. Not for the data path. Threading: pure function.
#pragma once

#include <cstdint>

#include "common/optimizer/optimizer.h"

namespace slackline::reference {

// As Optimizer::Step of an optimizer created from `config`.
void Step(const OptimizerConfig& config, const ParameterView& parameters,
          const GradientView& gradient, float learning_rate, uint64_t step);

}  // namespace slackline::reference
