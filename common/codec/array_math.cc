#include "common/codec/array_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/array_math.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

void Add(float* to, const float* from, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto sum0 = hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i));
    const auto sum1 = hn::Add(hn::LoadU(d, to + i + lanes), hn::LoadU(d, from + i + lanes));
    hn::StoreU(sum0, d, to + i);
    hn::StoreU(sum1, d, to + i + lanes);
  }
  for (; i < count; ++i) to[i] += from[i];
}

void Scale(float* to, size_t count, float factor) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, to + i), factors), d, to + i);
  }
  for (; i < count; ++i) to[i] *= factor;
}

template <bool kAdd>
void Widen(int32_t* to, const int8_t* from, size_t count) {
  const hn::ScalableTag<int32_t> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto value = hn::PromoteTo(d, hn::LoadU(d8, from + i));
    if constexpr (kAdd) value = hn::Add(hn::LoadU(d, to + i), value);
    hn::StoreU(value, d, to + i);
  }
  for (; i < count; ++i) to[i] = (kAdd ? to[i] : 0) + from[i];
}

void WidenCopy(int32_t* to, const int8_t* from, size_t count) { Widen<false>(to, from, count); }
void WidenAdd(int32_t* to, const int8_t* from, size_t count) { Widen<true>(to, from, count); }

void ConvertScaled(float* to, const int32_t* from, size_t count, float factor) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::LoadU(di, from + i)), factors), d, to + i);
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * factor;
}

void AddProduct(float* to, const float* from, size_t count, float factor) {
  const hn::ScalableTag<float> d;
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto product = hn::Mul(hn::LoadU(d, from + i), factors);
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), product), d, to + i);
  }
  for (; i < count; ++i) to[i] += from[i] * factor;
}

float Dot(const float* a, const float* b, size_t count) {
  constexpr size_t kSums = 32;
  const hn::CappedTag<float, 16> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN float sums[kSums];
  const size_t whole = count / kSums * kSums;
  for (size_t column = 0; column < kSums; column += kLanes) {
    auto sum = hn::Zero(d);
    for (size_t i = column; i < whole; i += kSums) {
      sum = hn::Add(sum, hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i)));
    }
    hn::Store(sum, d, sums + column);
  }
  for (size_t i = whole; i < count; ++i) sums[i - whole] += a[i] * b[i];
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace
}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline {
namespace {
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(WidenCopy);
HWY_EXPORT(WidenAdd);
HWY_EXPORT(ConvertScaled);
HWY_EXPORT(AddProduct);
HWY_EXPORT(Dot);
}  // namespace

void AddArrays(float* to, const float* from, size_t count) {
  HWY_DYNAMIC_DISPATCH(Add)(to, from, count);
}

void ScaleArray(float* to, size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(Scale)(to, count, factor);
}

void WidenArray(int32_t* to, const int8_t* from, size_t count) {
  HWY_DYNAMIC_DISPATCH(WidenCopy)(to, from, count);
}

void AddWidened(int32_t* to, const int8_t* from, size_t count) {
  HWY_DYNAMIC_DISPATCH(WidenAdd)(to, from, count);
}

void ScaleIntegers(float* to, const int32_t* from, size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(ConvertScaled)(to, from, count, factor);
}

void AddScaled(float* to, const float* from, size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(AddProduct)(to, from, count, factor);
}

float DotProduct(const float* a, const float* b, size_t count) {
  return HWY_DYNAMIC_DISPATCH(Dot)(a, b, count);
}

void TreeSum(std::span<float* const> leaves, size_t count) {
  // From the bottom up, with doubled strides, this is the tree of the header: groups of 2^k leaves
  // that are complete merge with each other before they meet the rest.
  for (size_t stride = 1; stride < leaves.size(); stride *= 2) {
    for (size_t i = 0; i + stride < leaves.size(); i += 2 * stride) {
      AddArrays(leaves[i], leaves[i + stride], count);
    }
  }
}

}  // namespace slackline
#endif  // HWY_ONCE
