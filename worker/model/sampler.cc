#include "worker/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace slackline::worker {

size_t Sampler::Pick(std::span<const float> logits) {
  if (temperature_ <= 0) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  const size_t kept =
      top_k_ <= 0 ? logits.size() : std::min(logits.size(), static_cast<size_t>(top_k_));
  // The index decides between equal logits, so that a seed gives one text.
  std::partial_sort(
      order_.begin(), order_.begin() + static_cast<ptrdiff_t>(kept), order_.end(),
      [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  weights_.resize(kept);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    const double above = double{logits[order_[i]]} - double{logits[order_[0]]};
    sum += weights_[i] = std::exp(above / temperature_);
  }
  double left = rng_.Uniform() * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weights_[i];
    if (left < 0) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace slackline::worker
