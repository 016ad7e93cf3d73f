#include "worker/precision/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace slackline::worker {
namespace {

// What a float holds as a power of two with room on both sides for the gradients themselves.
constexpr int kMaxExponent = 60;

bool IsPowerOfTwo(double value) {
  int exponent = 0;
  return std::isfinite(value) && std::frexp(value, &exponent) == 0.5 &&
         std::abs(exponent) <= kMaxExponent;
}

Status Wrong(const char* field, double value, const char* expected) {
  std::ostringstream text;
  text << "loss scale: " << field << " = " << value << ": expected " << expected;
  return InvalidArgument(text.str());
}

}  // namespace

Status ValidateLossScale(const LossScaleOptions& options) {
  constexpr const char* kPower = "a power of two from 2^-60 to 2^59";
  if (!IsPowerOfTwo(options.initial)) return Wrong("initial", options.initial, kPower);
  if (!IsPowerOfTwo(options.min)) return Wrong("min", options.min, kPower);
  if (!IsPowerOfTwo(options.max)) return Wrong("max", options.max, kPower);
  if (options.min > options.initial) {
    return Wrong("min", options.min, "at most the initial scale");
  }
  if (options.max < options.initial) {
    return Wrong("max", options.max, "at least the initial scale");
  }
  if (!IsPowerOfTwo(options.backoff) || options.backoff >= 1) {
    return Wrong("backoff", options.backoff, "a power of two below 1");
  }
  if (options.growth_interval < 0) {
    return Wrong("growth interval", static_cast<double>(options.growth_interval), "0 or more");
  }
  return OkStatus();
}

void LossScaler::Update(bool overflow) {
  if (overflow) {
    ++overflows_;
    good_steps_ = 0;
    if (options_.growth_interval > 0) {
      scale_ = std::max(options_.min, scale_ * options_.backoff);
    }
    return;
  }
  if (options_.growth_interval > 0 && ++good_steps_ >= options_.growth_interval) {
    good_steps_ = 0;
    scale_ = std::min(options_.max, scale_ * 2);
  }
}

}  // namespace slackline::worker
