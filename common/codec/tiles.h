// The values that a selecting codec encodes: in[i] * scale + residual[i], loaded once and tile by
// tile by the SIMD kernels.
//
// With a next residual they are left there; otherwise a tile lives until the next one is loaded.
// Threading: values of one thread. Ownership: the arrays outlive this.
#pragma once

#include <cstddef>

#include "common/codec/codec.h"

namespace slackline {

inline constexpr size_t kTile = 1024;  // Stays in the first cache between loading and looking.

class Tiles {
 public:
  // As ResidualCodec::EncodeResidual; count > 0.
  Tiles(const float* in, size_t count, float scale, const float* residual, float* next_residual)
      : in_(in), count_(count), scale_(scale), residual_(residual), next_(next_residual) {}

  size_t count() const { return count_; }
  const EncodeStats& stats() const { return stats_; }
  float* next_residual() const { return next_; }

  // kTile values from `first` on, zeros behind the last; valid until the next call. Each tile once.
  const float* Load(size_t first);
  // The same again, once all tiles have been loaded.
  const float* Reload(size_t first);
  // One value: at any time without a next residual, else once its tile has been loaded.
  float At(size_t index) const;
  // The magnitude of in * scale + residual before any tile is loaded. Not clamped.
  float MagnitudeBefore(size_t index) const;

 private:
  void Pad(const float* from, size_t first, float* to) const;
  const float* LoadTile(size_t first, EncodeStats* stats);

  const float* const in_;
  const size_t count_;
  const float scale_;
  const float* const residual_;
  float* const next_;
  EncodeStats stats_;
  alignas(64) float tile_[kTile];
};

}  // namespace slackline
