// Dynamic loss scaling: gradients travel multiplied by a power of two, so that small ones do not
// vanish in a half-precision format; an overflow halves the scale, a run of good steps doubles it.
// (Micikevicius et al. 2018, "Mixed precision training", section 3.2.)
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace slackline::worker {

struct LossScaleOptions {
  double initial = 1024;  // All four are powers of two, min <= initial <= max.
  double min = 1.0 / 1024;
  double max = 16777216;          // 2^24
  double backoff = 0.5;           // At an overflow; below 1.
  int64_t growth_interval = 200;  // Good steps in a row before doubling; 0: the scale is fixed.
};

// InvalidArgument names the flag-like field, its value and what is allowed.
Status ValidateLossScale(const LossScaleOptions& options);

class LossScaler {
 public:
  // The options must be valid.
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options), scale_(options.initial) {}

  float scale() const { return static_cast<float>(scale_); }
  uint64_t overflows() const { return overflows_; }
  // The step's gradient was finite and fitted the wire format, or it did not.
  void Update(bool overflow);

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  uint64_t overflows_ = 0;
};

}  // namespace slackline::worker
