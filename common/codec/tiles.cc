#include "common/codec/tiles.h"

#include <algorithm>
#include <cmath>

#include "common/codec/block_kernels.h"

namespace slackline {

const float* Tiles::Load(size_t first) { return LoadTile(first, &stats_); }

const float* Tiles::Reload(size_t first) {
  EncodeStats counted_before;
  if (next_ == nullptr) return LoadTile(first, &counted_before);
  if (first + kTile <= count_) return next_ + first;
  Pad(next_, first, tile_);
  return tile_;
}

float Tiles::At(size_t index) const {
  if (next_ != nullptr) return next_[index];
  const float kept = residual_ == nullptr ? 0.0f : residual_[index];
  const float value = std::isfinite(in_[index]) ? in_[index] * scale_ + kept : kept;
  return std::clamp(value, -kLargestCoded, kLargestCoded);
}

float Tiles::MagnitudeBefore(size_t index) const {
  const float kept = residual_ == nullptr ? 0.0f : residual_[index];
  return std::fabs(in_[index] * scale_ + kept);
}

void Tiles::Pad(const float* from, size_t first, float* to) const {
  std::fill(std::copy_n(from + first, count_ - first, to), to + kTile, 0.0f);
}

const float* Tiles::LoadTile(size_t first, EncodeStats* stats) {
  const BlockKernels& kernels = GetBlockKernels();
  const float* kept = residual_ == nullptr ? nullptr : residual_ + first;
  if (first + kTile <= count_) {
    float* to = next_ == nullptr ? tile_ : next_ + first;
    kernels.load(in_ + first, kept, kTile, scale_, to, stats);
    return to;
  }
  alignas(64) float padded[kTile];
  Pad(in_, first, padded);
  if (kept != nullptr) {
    Pad(residual_, first, tile_);
    kept = tile_;
  }
  kernels.load(padded, kept, kTile, scale_, tile_, stats);
  if (next_ != nullptr) std::copy_n(tile_, count_ - first, next_ + first);
  return tile_;
}

}  // namespace slackline
