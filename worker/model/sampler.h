// Picks the next token from logits: temperature, then the top k, then by chance.
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/random.h"

namespace slackline::worker {

class Sampler {
 public:
  // temperature 0: always the largest logit. top_k 0: no limit.
  Sampler(double temperature, int64_t top_k, uint64_t seed)
      : temperature_(temperature), top_k_(top_k), rng_(seed) {}

  // An index of `logits`, which must not be empty.
  size_t Pick(std::span<const float> logits);

 private:
  double temperature_;
  int64_t top_k_;
  Rng rng_;
  std::vector<size_t> order_;
  std::vector<double> weights_;
};

}  // namespace slackline::worker
