// One pass over a gradient: is it finite, how large is it, and what is its norm.
// Threading: pure functions.
#pragma once

#include <span>

#include "common/codec/codec.h"

namespace slackline::worker {

struct GradientCheck {
  bool finite = true;      // No NaN, no infinity.
  float max_abs = 0;       // Meaningless unless finite.
  double sum_squares = 0;  // Likewise.

  // Of two parts together.
  void Merge(const GradientCheck& other);
};

// The sum is taken in eight fixed lanes and in a fixed order: the same values give the same bits.
GradientCheck CheckGradient(std::span<const float> gradient);

// False if a value is not finite, or would be clamped by the wire format (which counts as an
// overflow: the server would take a wrong gradient for a right one).
bool FitsCodec(const GradientCheck& check, CodecId codec);

// What to multiply a gradient by so that its norm is at most `max_norm`; 1 if it is already, and
// for max_norm 0 (no clipping). (Pascanu et al. 2013, "On the difficulty of training recurrent
// neural networks", algorithm 1.)
float ClipFactor(double norm, double max_norm);

}  // namespace slackline::worker
