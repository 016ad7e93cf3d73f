#include "common/codec/dense_kernels.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/dense_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "common/codec/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace {

// One vector of values to bytes; returns whether any value was replaced (rare, counted apart).
template <class Format, class D>
HWY_INLINE hn::Mask<D> EncodeVector(D d, const float* in, hn::Vec<D> scale, std::byte* out) {
  const auto value = hn::LoadU(d, in);
  const auto scaled = hn::Mul(value, scale);
  StoreSaturated<Format>(d, scaled, hn::IsFinite(value), out);
  // False for NaN too: every comparison with NaN is.
  return hn::Le(hn::Abs(scaled), hn::Set(d, Format::kLargest));
}

// Counts what EncodeVector replaced among `count` values.
template <class Format>
HWY_NOINLINE void CountReplaced(const float* in, size_t count, float scale, EncodeStats* stats) {
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(in[i])) {
      ++stats->non_finite;
    } else if (std::fabs(in[i] * scale) > Format::kLargest) {
      ++stats->saturated;
    }
  }
}

template <class Format>
EncodeStats Encode(const float* in, size_t count, float scale, std::byte* out) {
  constexpr size_t kBytes = sizeof(typename Format::Lane);
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  const auto scales = hn::Set(d, scale);
  EncodeStats stats;
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto fits0 = EncodeVector<Format>(d, in + i, scales, out + i * kBytes);
    const auto fits1 = EncodeVector<Format>(d, in + i + lanes, scales, out + (i + lanes) * kBytes);
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::And(fits0, fits1)))) {
      CountReplaced<Format>(in + i, 2 * lanes, scale, &stats);
    }
  }
  const size_t tail = i;
  for (; i < count; ++i) {
    (void)EncodeVector<Format>(d1, in + i, hn::Set(d1, scale), out + i * kBytes);
  }
  CountReplaced<Format>(in + tail, count - tail, scale, &stats);
  return stats;
}

template <class Format, bool kAdd, class D>
HWY_INLINE void DecodeVector(D d, const std::byte* in, float scale, float* out) {
  const auto value = hn::Mul(Format::Load(d, in), hn::Set(d, scale));
  if constexpr (kAdd) {
    hn::StoreU(hn::Add(hn::LoadU(d, out), value), d, out);
  } else {
    hn::StoreU(value, d, out);
  }
}

template <class Format, bool kAdd>
void Decode(const std::byte* in, size_t count, float scale, float* out) {
  constexpr size_t kBytes = sizeof(typename Format::Lane);
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    DecodeVector<Format, kAdd>(d, in + i * kBytes, scale, out + i);
    DecodeVector<Format, kAdd>(d, in + (i + lanes) * kBytes, scale, out + i + lanes);
  }
  for (; i < count; ++i) DecodeVector<Format, kAdd>(d1, in + i * kBytes, scale, out + i);
}

// A value is not finite exactly when all bits of its exponent are set.
template <class Format>
size_t FirstNonFinite(const std::byte* bytes, size_t count) {
  using Bits = typename Format::BitsLane;
  const hn::ScalableTag<Bits> d;
  const auto exponent = hn::Set(d, Format::kExponentMask);
  const size_t lanes = hn::Lanes(d);
  const auto* in = reinterpret_cast<const Bits*>(bytes);
  const auto bad = [&](size_t at) HWY_ATTR {
    return hn::Eq(hn::And(hn::LoadU(d, in + at), exponent), exponent);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto any =
        hn::Or(hn::Or(bad(i), bad(i + lanes)), hn::Or(bad(i + 2 * lanes), bad(i + 3 * lanes)));
    if (HWY_UNLIKELY(!hn::AllFalse(d, any))) break;
  }
  // The block with the culprit, or the tail.
  for (; i < count; ++i) {
    Bits bits;  // Behind another part's bytes, a part starts anywhere.
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    if ((bits & Format::kExponentMask) == Format::kExponentMask) break;
  }
  return i;
}

template <class Format>
constexpr DenseKernels kKernels = {Encode<Format>, Decode<Format, false>, Decode<Format, true>,
                                   FirstNonFinite<Format>};

const DenseKernels* Fp32() { return &kKernels<Fp32Format>; }
const DenseKernels* Fp16() { return &kKernels<Fp16Format>; }
const DenseKernels* Bf16() { return &kKernels<Bf16Format>; }

}  // namespace
}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline {
namespace {
HWY_EXPORT(Fp32);
HWY_EXPORT(Fp16);
HWY_EXPORT(Bf16);
}  // namespace

const DenseKernels& Fp32Kernels() { return *HWY_DYNAMIC_DISPATCH(Fp32)(); }
const DenseKernels& Fp16Kernels() { return *HWY_DYNAMIC_DISPATCH(Fp16)(); }
const DenseKernels& Bf16Kernels() { return *HWY_DYNAMIC_DISPATCH(Bf16)(); }

}  // namespace slackline
#endif  // HWY_ONCE
