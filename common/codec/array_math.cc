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

}  // namespace
}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline {
namespace {
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
}  // namespace

void AddArrays(float* to, const float* from, size_t count) {
  HWY_DYNAMIC_DISPATCH(Add)(to, from, count);
}

void ScaleArray(float* to, size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(Scale)(to, count, factor);
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
