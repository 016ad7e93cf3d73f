#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "common/optimizer/optimizer.h"

namespace slackline {
namespace {

using Kind = ScheduleConfig::Kind;

template <class Value>
Status Invalid(std::string_view name, Value value, std::string_view expected) {
  std::ostringstream message;
  message << "--" << name << "=" << value << ": expected " << expected;
  return InvalidArgument(message.str());
}

double Cosine(const ScheduleConfig& config, Clock clock) {
  const auto done = static_cast<double>(clock - config.warmup_steps);
  const auto all = static_cast<double>(config.total_steps - config.warmup_steps);
  const double progress = std::clamp(done / all, 0.0, 1.0);
  const double wave = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return config.final_fraction + (1 - config.final_fraction) * wave;
}

}  // namespace

Status ValidateSchedule(const ScheduleConfig& config) {
  if (!(config.learning_rate > 0 && config.learning_rate <= 1e6)) {
    return Invalid("learning_rate", config.learning_rate, "a number above 0, at most 1e6");
  }
  if (config.warmup_steps < 0) {
    return Invalid("warmup_steps", config.warmup_steps, "a whole number of at least 0");
  }
  if (config.kind == Kind::kCosine) {
    if (config.total_steps <= config.warmup_steps) {
      return Invalid("total_steps", config.total_steps,
                     "more than --warmup_steps=" + std::to_string(config.warmup_steps));
    }
    if (!(config.final_fraction >= 0 && config.final_fraction <= 1)) {
      return Invalid("final_fraction", config.final_fraction, "a number from 0 to 1");
    }
  }
  if (config.kind == Kind::kStep) {
    if (config.step_every < 1) {
      return Invalid("step_every", config.step_every, "a whole number of at least 1");
    }
    if (!(config.step_factor > 0 && config.step_factor <= 1)) {
      return Invalid("step_factor", config.step_factor, "a number above 0, at most 1");
    }
  }
  return OkStatus();
}

double LearningRate(const ScheduleConfig& config, Clock clock) {
  clock = std::max<Clock>(clock, 0);
  if (clock < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(clock + 1) /
           static_cast<double>(config.warmup_steps);
  }
  switch (config.kind) {
    case Kind::kConstant:
      return config.learning_rate;
    case Kind::kCosine:
      return config.learning_rate * Cosine(config, clock);
    case Kind::kStep:
      return config.learning_rate *
             std::pow(config.step_factor, static_cast<double>(clock / config.step_every));
  }
  return config.learning_rate;
}

}  // namespace slackline
