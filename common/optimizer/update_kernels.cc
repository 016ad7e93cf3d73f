#include "common/optimizer/update_kernels.h"

#include <glog/logging.h>

#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/optimizer/update_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "common/codec/formats-inl.h"
#include "common/optimizer/updates-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace {

namespace formats = slackline::HWY_NAMESPACE;

// The payload format of a gradient that is only a sum.
struct NoPayload {
  struct Lane {};
};

// g[i] = (sum[i] + decode(payload)[i] * payload_scale) * scale, for one vector.
template <class Format, class D, class V = hn::Vec<D>>
HWY_INLINE V LoadGradient(D d, const GradientView& gradient, size_t i) {
  V value;
  if constexpr (std::is_same_v<Format, NoPayload>) {
    value = hn::LoadU(d, gradient.sum + i);
  } else {
    value = Format::Load(d, gradient.payload + i * sizeof(typename Format::Lane));
    value = hn::Mul(value, hn::Set(d, gradient.payload_scale));
    if (gradient.sum != nullptr) value = hn::Add(hn::LoadU(d, gradient.sum + i), value);
  }
  return hn::Mul(value, hn::Set(d, gradient.scale));
}

template <class Update, class Format>
void RunUpdate(const ParameterView& parameters_in, const GradientView& gradient_in,
               const UpdateConstants& constants_in) {
  // Copies whose address does not escape: a store to an array of floats could change the caller's
  // as far as the compiler knows, and it would load every constant anew.
  const ParameterView parameters = parameters_in;
  const GradientView gradient = gradient_in;
  const UpdateConstants constants = constants_in;
  const hn::CappedTag<float, kUpdateMultiple> d;
  for (size_t i = 0; i < parameters.count; i += hn::Lanes(d)) {
    const auto weights = hn::LoadU(d, parameters.weights + i);
    auto value = LoadGradient<Format>(d, gradient, i);
    if constexpr (Update::kCoupledDecay) {
      if (constants.coupled_decay != 0) {
        value = hn::Add(value, hn::Mul(hn::Set(d, constants.coupled_decay), weights));
      }
    }
    float* slot0 = Update::kSlots > 0 ? parameters.slot0 + i : nullptr;
    float* slot1 = Update::kSlots > 1 ? parameters.slot1 + i : nullptr;
    hn::StoreU(Update::Apply(d, weights, value, slot0, slot1, constants), d,
               parameters.weights_out + i);
  }
}

template <class Update>
UpdateFunction ForPayload(CodecId payload_codec) {
  switch (payload_codec) {
    case CodecId::kFp32:
      return RunUpdate<Update, formats::Fp32Format>;
    case CodecId::kFp16:
      return RunUpdate<Update, formats::Fp16Format>;
    case CodecId::kBf16:
      return RunUpdate<Update, formats::Bf16Format>;
    default:
      return RunUpdate<Update, NoPayload>;
  }
}

UpdateFunction Find(OptimizerKind kind, CodecId payload_codec) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return ForPayload<SgdUpdate>(payload_codec);
    case OptimizerKind::kMomentum:
      return ForPayload<MomentumUpdate>(payload_codec);
    case OptimizerKind::kNesterov:
      return ForPayload<NesterovUpdate>(payload_codec);
    case OptimizerKind::kDelayedNesterov:
      return ForPayload<DelayedNesterovUpdate>(payload_codec);
    case OptimizerKind::kAdam:
      return ForPayload<AdamUpdate>(payload_codec);
    case OptimizerKind::kAdamW:
      return ForPayload<AdamWUpdate>(payload_codec);
    case OptimizerKind::kAdagrad:
      return ForPayload<AdagradUpdate>(payload_codec);
  }
  return nullptr;
}

}  // namespace
}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline {
namespace {
HWY_EXPORT(Find);
}  // namespace

UpdateFunction FindUpdate(OptimizerKind kind, CodecId payload_codec) {
  const UpdateFunction update = HWY_DYNAMIC_DISPATCH(Find)(kind, payload_codec);
  CHECK(update != nullptr) << "no optimizer has number " << static_cast<int>(kind);
  return update;
}

}  // namespace slackline
#endif  // HWY_ONCE
