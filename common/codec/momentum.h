// Momentum at the worker, for codecs that send little: momentum correction and momentum factor
// masking after Lin et al., "Deep gradient compression", ICLR 2018, arXiv 1712.01887, section 3.2
// and algorithm 4. The server then runs plain SGD without momentum.
//
// With u the velocity, v the residual, m the momentum and g the gradient of a clock:
//   u = m * u + g;  v = v + u;  send a part of v;  v = 0 and u = 0 where v was sent.
// So a value that waits gathers the momentum that it would have had (correction), and one that was
// sent does not drag on with stale momentum (masking). Codecs that send a bit of every value mask
// nothing.
// Threading: pure. Ownership: the caller's arrays.
#pragma once

#include <cstddef>

#include "common/codec/residual_codec.h"

namespace slackline {

// What a worker keeps of a chunk between clocks, `count` values each, without loss scale. The next
// state may be the state itself, and is committed as ResidualCodec::EncodeResidual says.
struct MomentumState {
  const float* velocity;  // Null for the first clock; so for the residual.
  const float* residual;
  float* next_velocity;
  float* next_residual;
};

// velocity = momentum * velocity + in * scale; an input that is not finite is counted and left out.
EncodeStats UpdateVelocity(const float* in, size_t count, float scale, float momentum,
                           float* velocity);

// Encodes in[i] * scale with momentum in [0, 1). `out` and the result are as for EncodeResidual.
EncodeStats EncodeWithMomentum(const ResidualCodec& codec, const float* in, size_t count,
                               float scale, float momentum, const MomentumState& state,
                               const EncodeIdentity& identity, std::byte* out);

}  // namespace slackline
