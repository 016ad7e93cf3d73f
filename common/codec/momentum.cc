#include "common/codec/momentum.h"

#include <algorithm>

#include "common/codec/array_math.h"
#include "common/codec/tiles.h"

namespace slackline {

EncodeStats UpdateVelocity(const float* in, size_t count, float scale, float momentum,
                           float* velocity) {
  if (count == 0) return {};
  ScaleArray(velocity, count, momentum);
  Tiles gradient(in, count, scale, velocity, velocity);
  for (size_t first = 0; first < count; first += kTile) gradient.Load(first);
  return gradient.stats();
}

EncodeStats EncodeWithMomentum(const ResidualCodec& codec, const float* in, size_t count,
                               float scale, float momentum, const MomentumState& state,
                               const EncodeIdentity& identity, std::byte* out) {
  float* const velocity = state.next_velocity;
  if (state.velocity == nullptr) {
    std::fill_n(velocity, count, 0.0f);
  } else if (state.velocity != velocity) {
    std::copy_n(state.velocity, count, velocity);
  }
  EncodeStats stats = UpdateVelocity(in, count, scale, momentum, velocity);
  const EncodeStats encoded =
      codec.EncodeResidual(velocity, count, 1, state.residual, state.next_residual, identity, out);
  codec.ClearSent(out, count, velocity);
  stats.saturated += encoded.saturated;
  return stats;
}

}  // namespace slackline
