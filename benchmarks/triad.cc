// The STREAM triad in SIMD chosen at run time, as the optimizers are: else the yardstick would be
// slow for want of wide vectors.
#include "benchmarks/measure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/triad.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Small enough that repeated passes in place stay finite.
constexpr float kFactor = 1e-3f;

void Triad(float* a, const float* b, const float* c, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, kFactor);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (size_t j = i; j < i + 4 * lanes; j += lanes) {
      hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, c + j), hn::LoadU(d, b + j)), d, a + j);
    }
  }
  for (; i < count; ++i) a[i] = b[i] + kFactor * c[i];
}

void TriadInPlace(float* a, const float* b, size_t count) { Triad(a, a, b, count); }

}  // namespace
}  // namespace slackline::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline::bench {
namespace {
HWY_EXPORT(Triad);
HWY_EXPORT(TriadInPlace);
}  // namespace

void TriadPass(float* a, const float* b, const float* c, size_t count) {
  HWY_DYNAMIC_DISPATCH(Triad)(a, b, c, count);
}

void TriadInPlacePass(float* a, const float* b, size_t count) {
  HWY_DYNAMIC_DISPATCH(TriadInPlace)(a, b, count);
}

}  // namespace slackline::bench
#endif  // HWY_ONCE
