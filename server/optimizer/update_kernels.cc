#include "server/optimizer/update_kernels.h"

#include <glog/logging.h>

#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/update_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "common/codec/formats-inl.h"
#include "hwy/highway.h"
#include "server/optimizer/updates-inl.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::server::HWY_NAMESPACE {
namespace {

namespace formats = slackline::HWY_NAMESPACE;

// The payload format of a gradient that is only a sum.
struct NoPayload {
  struct Lane {};
};

// g[i] = (sum[i] + decode(payload)[i] * payload_scale) * scale, for one vector.
template <class Format, bool kSum, class D, class V = hn::Vec<D>>
HWY_INLINE V LoadGradient(D d, const GradientView& gradient, size_t i) {
  V value;
  if constexpr (std::is_same_v<Format, NoPayload>) {
    value = hn::LoadU(d, gradient.sum + i);
  } else {
    value = Format::Load(d, gradient.payload + i * sizeof(typename Format::Lane));
    value = hn::Mul(value, hn::Set(d, gradient.payload_scale));
    if constexpr (kSum) value = hn::Add(hn::LoadU(d, gradient.sum + i), value);
  }
  return hn::Mul(value, hn::Set(d, gradient.scale));
}

// The new weights once more, in the format of the reply. As Codec::Encode with scale 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreCopy(D d, V weights, const ParameterView& parameters, size_t i) {
  const auto finite = hn::IsFinite(weights);
  if (parameters.copy_codec == CodecId::kFp16) {
    formats::StoreSaturated<formats::Fp16Format>(d, weights, finite, parameters.copy_out + i * 2);
  } else {
    formats::StoreSaturated<formats::Bf16Format>(d, weights, finite, parameters.copy_out + i * 2);
  }
}

template <class Update, class Format, bool kSum, class D>
HWY_INLINE void UpdateVector(D d, const ParameterView& parameters, const GradientView& gradient,
                             const UpdateConstants& constants, size_t i) {
  using V = hn::Vec<D>;
  const V weights = hn::LoadU(d, parameters.weights + i);
  V value = LoadGradient<Format, kSum>(d, gradient, i);
  if constexpr (Update::kCoupledDecay) {
    if (constants.coupled_decay != 0) {
      value = hn::Add(value, hn::Mul(hn::Set(d, constants.coupled_decay), weights));
    }
  }
  float* slot0 = Update::kSlots > 0 ? parameters.slot0 + i : nullptr;
  float* slot1 = Update::kSlots > 1 ? parameters.slot1 + i : nullptr;
  const V updated = Update::Apply(d, weights, value, slot0, slot1, constants);
  hn::StoreU(updated, d, parameters.weights_out + i);
  if (parameters.copy_out != nullptr) StoreCopy(d, updated, parameters, i);
}

template <class Update, class Format, bool kSum>
void RunUpdate(const ParameterView& parameters_in, const GradientView& gradient_in,
               const UpdateConstants& constants_in) {
  // Copies whose address does not escape: a store to an array of floats could change the caller's
  // as far as the compiler knows, and it would load every constant anew.
  const ParameterView parameters = parameters_in;
  const GradientView gradient = gradient_in;
  const UpdateConstants constants = constants_in;
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= parameters.count; i += lanes) {
    UpdateVector<Update, Format, kSum>(d, parameters, gradient, constants, i);
  }
  for (; i < parameters.count; ++i) {
    UpdateVector<Update, Format, kSum>(d1, parameters, gradient, constants, i);
  }
}

template <class Update, bool kSum>
UpdateFunction ForPayload(CodecId payload_codec) {
  switch (payload_codec) {
    case CodecId::kFp32:
      return RunUpdate<Update, formats::Fp32Format, kSum>;
    case CodecId::kFp16:
      return RunUpdate<Update, formats::Fp16Format, kSum>;
    case CodecId::kBf16:
      return RunUpdate<Update, formats::Bf16Format, kSum>;
    default:
      return RunUpdate<Update, NoPayload, true>;
  }
}

template <class Update>
UpdateFunction ForGradient(CodecId payload_codec, bool has_sum) {
  return has_sum ? ForPayload<Update, true>(payload_codec)
                 : ForPayload<Update, false>(payload_codec);
}

UpdateFunction Find(OptimizerKind kind, CodecId payload_codec, bool has_sum) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return ForGradient<SgdUpdate>(payload_codec, has_sum);
    case OptimizerKind::kMomentum:
      return ForGradient<MomentumUpdate>(payload_codec, has_sum);
    case OptimizerKind::kNesterov:
      return ForGradient<NesterovUpdate>(payload_codec, has_sum);
    case OptimizerKind::kAdam:
      return ForGradient<AdamUpdate>(payload_codec, has_sum);
    case OptimizerKind::kAdamW:
      return ForGradient<AdamWUpdate>(payload_codec, has_sum);
    case OptimizerKind::kAdagrad:
      return ForGradient<AdagradUpdate>(payload_codec, has_sum);
  }
  return nullptr;
}

}  // namespace
}  // namespace slackline::server::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline::server {
namespace {
HWY_EXPORT(Find);
}  // namespace

UpdateFunction FindUpdate(OptimizerKind kind, CodecId payload_codec, bool has_sum) {
  const UpdateFunction update = HWY_DYNAMIC_DISPATCH(Find)(kind, payload_codec, has_sum);
  CHECK(update != nullptr) << "no optimizer has number " << static_cast<int>(kind);
  return update;
}

}  // namespace slackline::server
#endif  // HWY_ONCE
