#include "common/optimizer/optimizer.h"

#include <glog/logging.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "common/optimizer/fused_step.h"

namespace slackline {
namespace {

struct KindInfo {
  OptimizerKind kind;
  std::string_view name;
  size_t slot_count;
  std::array<std::string_view, 2> slots;
};

constexpr std::array<KindInfo, 7> kKinds = {{
    {OptimizerKind::kSgd, "sgd", 0, {}},
    {OptimizerKind::kMomentum, "momentum", 1, {"momentum"}},
    {OptimizerKind::kNesterov, "nesterov", 1, {"momentum"}},
    {OptimizerKind::kDelayedNesterov, "delayed_nesterov", 2, {"momentum", "delayed_sum"}},
    {OptimizerKind::kAdam, "adam", 2, {"first_moment", "second_moment"}},
    {OptimizerKind::kAdamW, "adamw", 2, {"first_moment", "second_moment"}},
    {OptimizerKind::kAdagrad, "adagrad", 1, {"square_sum"}},
}};

const KindInfo* FindKind(OptimizerKind kind) {
  for (const KindInfo& info : kKinds) {
    if (info.kind == kind) return &info;
  }
  return nullptr;
}

constexpr uint32_t kMaxPeriod = 65536;

Status OutOfRange(std::string_view name, double value, std::string_view allowed) {
  std::ostringstream message;
  message << "--" << name << "=" << value << ": expected a number " << allowed;
  return InvalidArgument(message.str());
}

// A factor by which old state is kept. Tested as the FP32 that the loops use, where a number just
// below 1 can be 1 and would never forget.
Status CheckKeptFraction(std::string_view name, double value) {
  if (value >= 0 && static_cast<float>(value) < 1.0f) return OkStatus();
  return OutOfRange(name, value, "of at least 0 and below 1");
}

Status CheckEpsilon(double epsilon) {
  // Below this the FP32 division by epsilon, where a second moment is zero, could overflow.
  if (epsilon >= 1e-30 && epsilon <= 1) return OkStatus();
  return OutOfRange("epsilon", epsilon, "from 1e-30 to 1");
}

// Only what the optimizer uses is checked: a job may leave the rest unset.
Status CheckConfig(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      break;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
      SLACKLINE_RETURN_IF_ERROR(CheckKeptFraction("momentum", config.momentum));
      break;
    case OptimizerKind::kDelayedNesterov:
      SLACKLINE_RETURN_IF_ERROR(CheckKeptFraction("momentum", config.momentum));
      if (config.period < 1 || config.period > kMaxPeriod) {
        return OutOfRange("period", config.period, "from 1 to 65536");
      }
      if (!(config.activation >= 0 && config.activation * config.period <= 1)) {
        return OutOfRange("activation", config.activation, "from 0 to 1 / period");
      }
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      SLACKLINE_RETURN_IF_ERROR(CheckKeptFraction("beta1", config.beta1));
      SLACKLINE_RETURN_IF_ERROR(CheckKeptFraction("beta2", config.beta2));
      SLACKLINE_RETURN_IF_ERROR(CheckEpsilon(config.epsilon));
      break;
    case OptimizerKind::kAdagrad:
      SLACKLINE_RETURN_IF_ERROR(CheckEpsilon(config.epsilon));
      break;
  }
  if (config.weight_decay >= 0 && config.weight_decay <= 1e6) return OkStatus();
  return OutOfRange("weight_decay", config.weight_decay, "from 0 to 1e6");
}

// The caller's pointers, which no peer can influence: a violation is a bug of ours.
void CheckViews(const KindInfo& info, const ParameterView& parameters,
                const GradientView& gradient) {
  CHECK(parameters.weights != nullptr && parameters.weights_out != nullptr) << "no weights";
  CHECK(info.slot_count < 1 || parameters.slot0 != nullptr) << info.name << " needs slot 0";
  CHECK(info.slot_count < 2 || parameters.slot1 != nullptr) << info.name << " needs slot 1";
  CHECK(gradient.sum != nullptr || gradient.payload != nullptr) << "no gradient";
  CHECK(gradient.payload == nullptr || gradient.payload_codec == CodecId::kFp32 ||
        gradient.payload_codec == CodecId::kFp16 || gradient.payload_codec == CodecId::kBf16)
      << "codec " << static_cast<int>(gradient.payload_codec) << " is not dense";
  CHECK(parameters.copy_out == nullptr || parameters.copy_codec == CodecId::kFp16 ||
        parameters.copy_codec == CodecId::kBf16)
      << "a copy is fp16 or bf16, not codec " << static_cast<int>(parameters.copy_codec);
}

class FusedOptimizer final : public Optimizer {
 public:
  FusedOptimizer(const OptimizerConfig& config, const KindInfo& info)
      : config_(config), info_(info) {}

  size_t slot_count() const override { return info_.slot_count; }

  std::string_view slot_name(size_t slot) const override {
    CHECK_LT(slot, info_.slot_count) << info_.name << " has no such slot";
    return info_.slots[slot];
  }

  void Step(const ParameterView& parameters, const GradientView& gradient, float learning_rate,
            uint64_t step) const override {
    if (parameters.count == 0) return;
    CHECK_GE(step, 1u) << "steps count from 1";
    CheckViews(info_, parameters, gradient);
    const CodecId payload = gradient.payload == nullptr ? CodecId::kNone : gradient.payload_codec;
    RunFusedStep(FindUpdate(config_.kind, payload), parameters, gradient,
                 ComputeConstants(config_, parameters.decay, learning_rate, step));
  }

 private:
  const OptimizerConfig config_;
  const KindInfo& info_;
};

}  // namespace

UpdateConstants ComputeConstants(const OptimizerConfig& config, bool decay, float learning_rate,
                                 uint64_t step) {
  const auto steps = static_cast<double>(step);
  const double bias1 = 1 - std::pow(config.beta1, steps);
  const double bias2 = 1 - std::pow(config.beta2, steps);
  const double weight_decay = decay ? config.weight_decay : 0;
  const bool decoupled = config.kind == OptimizerKind::kAdamW;
  UpdateConstants constants;
  constants.learning_rate = learning_rate;
  constants.momentum = static_cast<float>(config.momentum);
  constants.coupled_decay = decoupled ? 0 : static_cast<float>(weight_decay);
  constants.decoupled_factor =
      decoupled ? static_cast<float>(1 - double{learning_rate} * weight_decay) : 1;
  constants.beta1 = static_cast<float>(config.beta1);
  constants.one_minus_beta1 = static_cast<float>(1 - config.beta1);
  constants.beta2 = static_cast<float>(config.beta2);
  constants.one_minus_beta2 = static_cast<float>(1 - config.beta2);
  constants.step_size = static_cast<float>(double{learning_rate} / bias1);
  constants.inverse_sqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2));
  constants.epsilon = static_cast<float>(config.epsilon);
  if (config.kind != OptimizerKind::kDelayedNesterov) return constants;
  constants.ends_period = step % config.period == 0;
  const double c = config.activation;
  const double share = constants.ends_period ? 1 - c * config.period + c : c;
  constants.momentum_share = static_cast<float>(share * config.momentum);
  constants.inverse_period = static_cast<float>(1.0 / config.period);
  return constants;
}

Result<std::unique_ptr<Optimizer>> Optimizer::Create(const OptimizerConfig& config) {
  const KindInfo* info = FindKind(config.kind);
  if (info == nullptr) {
    return Err(InvalidArgument("no optimizer has number " +
                               std::to_string(static_cast<int>(config.kind))));
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckConfig(config));
  return std::make_unique<FusedOptimizer>(config, *info);
}

Result<OptimizerKind> ParseOptimizerKind(std::string_view name) {
  std::string names;
  for (const KindInfo& info : kKinds) {
    if (info.name == name) return info.kind;
    names += names.empty() ? "" : ", ";
    names += info.name;
  }
  return Err(InvalidArgument("--optimizer=" + std::string(name) + ": expected one of " + names));
}

std::string_view OptimizerKindName(OptimizerKind kind) {
  const KindInfo* info = FindKind(kind);
  return info == nullptr ? "unknown" : info->name;
}

}  // namespace slackline
