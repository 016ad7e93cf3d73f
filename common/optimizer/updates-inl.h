// One vector's worth of each optimizer: new weights from weights, gradient and state.
//
// Included once per SIMD target. Every struct's Apply() reads and writes its slots at the given
// pointers and returns the new weights. common/optimizer/reference.cc repeats the same operations
// in the same order, one value at a time.
#if defined(SLACKLINE_COMMON_OPTIMIZER_UPDATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLACKLINE_COMMON_OPTIMIZER_UPDATES_INL_H_
#undef SLACKLINE_COMMON_OPTIMIZER_UPDATES_INL_H_
#else
#define SLACKLINE_COMMON_OPTIMIZER_UPDATES_INL_H_
#endif

#include "common/optimizer/update_kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// w - factor * direction
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Descend(D d, V weights, float factor, V direction) {
  return hn::Sub(weights, hn::Mul(hn::Set(d, factor), direction));
}

// keep * old + take * new: an exponential moving average.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Blend(D d, float keep, V old_value, float take, V new_value) {
  return hn::Add(hn::Mul(hn::Set(d, keep), old_value), hn::Mul(hn::Set(d, take), new_value));
}

struct SgdUpdate {
  static constexpr size_t kSlots = 0;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float*, float*, const UpdateConstants& c) {
    return Descend(d, weights, c.learning_rate, gradient);
  }
};

struct MomentumUpdate {
  static constexpr size_t kSlots = 1;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float*,
                            const UpdateConstants& c) {
    const V buffer = hn::Add(hn::Mul(hn::Set(d, c.momentum), hn::LoadU(d, slot0)), gradient);
    hn::StoreU(buffer, d, slot0);
    return Descend(d, weights, c.learning_rate, buffer);
  }
};

struct NesterovUpdate {
  static constexpr size_t kSlots = 1;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float*,
                            const UpdateConstants& c) {
    const V momentum = hn::Set(d, c.momentum);
    const V buffer = hn::Add(hn::Mul(momentum, hn::LoadU(d, slot0)), gradient);
    hn::StoreU(buffer, d, slot0);
    return Descend(d, weights, c.learning_rate, hn::Add(gradient, hn::Mul(momentum, buffer)));
  }
};

struct DelayedNesterovUpdate {
  static constexpr size_t kSlots = 2;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float* slot1,
                            const UpdateConstants& c) {
    const V inverse_period = hn::Set(d, c.inverse_period);
    V buffer = hn::LoadU(d, slot0);
    V delayed = hn::Add(hn::LoadU(d, slot1), gradient);
    if (c.ends_period) {
      buffer = hn::Add(hn::Mul(hn::Set(d, c.momentum), buffer), hn::Mul(delayed, inverse_period));
      delayed = hn::Zero(d);
      hn::StoreU(buffer, d, slot0);
    }
    hn::StoreU(delayed, d, slot1);
    return Descend(
        d, weights, c.learning_rate,
        hn::Add(hn::Mul(hn::Set(d, c.momentum_share), buffer), hn::Mul(gradient, inverse_period)));
  }
};

struct AdamUpdate {
  static constexpr size_t kSlots = 2;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float* slot1,
                            const UpdateConstants& c) {
    const V first = Blend(d, c.beta1, hn::LoadU(d, slot0), c.one_minus_beta1, gradient);
    const V square = hn::Mul(gradient, gradient);
    const V second = Blend(d, c.beta2, hn::LoadU(d, slot1), c.one_minus_beta2, square);
    hn::StoreU(first, d, slot0);
    hn::StoreU(second, d, slot1);
    const V root = hn::Mul(hn::Sqrt(second), hn::Set(d, c.inverse_sqrt_bias2));
    const V ratio = hn::Div(first, hn::Add(root, hn::Set(d, c.epsilon)));
    return Descend(d, weights, c.step_size, ratio);
  }
};

struct AdamWUpdate {
  static constexpr size_t kSlots = 2;
  static constexpr bool kCoupledDecay = false;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float* slot1,
                            const UpdateConstants& c) {
    const V decayed = hn::Mul(weights, hn::Set(d, c.decoupled_factor));
    return AdamUpdate::Apply(d, decayed, gradient, slot0, slot1, c);
  }
};

struct AdagradUpdate {
  static constexpr size_t kSlots = 1;
  static constexpr bool kCoupledDecay = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V weights, V gradient, float* slot0, float*,
                            const UpdateConstants& c) {
    const V sum = hn::Add(hn::LoadU(d, slot0), hn::Mul(gradient, gradient));
    hn::StoreU(sum, d, slot0);
    const V ratio = hn::Div(gradient, hn::Add(hn::Sqrt(sum), hn::Set(d, c.epsilon)));
    return Descend(d, weights, c.learning_rate, ratio);
  }
};

}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLACKLINE_COMMON_OPTIMIZER_UPDATES_INL_H_
