// The dense wire formats as SIMD loads and stores: each Format turns bytes into a vector of FP32
// and back. Codecs and fused optimizers share them, so that both read and write the same bits.
//
// Included once per SIMD target (see hwy/foreach_target.h); the guard below follows Highway's
// toggle. Results are bit-identical on every target and equal to common/codec/reference.h.
#if defined(SLACKLINE_COMMON_CODEC_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLACKLINE_COMMON_CODEC_FORMATS_INL_H_
#undef SLACKLINE_COMMON_CODEC_FORMATS_INL_H_
#else
#define SLACKLINE_COMMON_CODEC_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// FP32 lanes whose value is finite and at most the largest FP16, as FP16 lanes, rounded to nearest
// even. Highway's fallback without F16C truncates, so targets without it convert here.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::Rebind<hwy::float16_t, D>> RoundToHalf(D d, V value) {
  const hn::Rebind<hwy::float16_t, D> d16;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSSE3 || \
    HWY_TARGET == HWY_SSE4
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);
  // Normal: rebias the exponent from 127 to 15 and round away the low 13 bits of the mantissa.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto normal = hn::ShiftRight<13>(
      hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu - ((127u - 15u) << 23))), odd));
  // Subnormal: the unit in the last place of 0.5f is 2^-24, FP16's smallest step, so one FP32
  // addition rounds as FP16 does and leaves the step count in the low bits.
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  const auto is_subnormal =
      hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>((127 - 14) << 23)));
  const auto rounded = hn::IfThenElse(hn::RebindMask(du, is_subnormal), subnormal, normal);
  const auto bits16 = hn::Or(rounded, hn::ShiftRight<16>(sign));
  return hn::BitCast(d16, hn::DemoteTo(du16, hn::BitCast(di, bits16)));
#else
  (void)d;
  return hn::DemoteTo(d16, value);
#endif
}

struct Fp32Format {
  using Lane = float;
  using BitsLane = uint32_t;
  static constexpr float kLargest = std::numeric_limits<float>::max();
  static constexpr BitsLane kExponentMask = 0x7F800000u;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return hn::LoadU(d, reinterpret_cast<const float*>(from));
  }
  // `value` is finite and its magnitude at most kLargest; so for every format.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, std::byte* to) {
    hn::StoreU(value, d, reinterpret_cast<float*>(to));
  }
};

struct Fp16Format {
  using Lane = hwy::float16_t;
  using BitsLane = uint16_t;
  static constexpr float kLargest = kMaxFp16;
  static constexpr BitsLane kExponentMask = 0x7C00;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const hn::Rebind<Lane, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const Lane*>(from)));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, std::byte* to) {
    const hn::Rebind<Lane, D> d16;
    hn::StoreU(RoundToHalf(d, value), d16, reinterpret_cast<Lane*>(to));
  }
};

struct Bf16Format {
  using Lane = uint16_t;
  using BitsLane = uint16_t;
  static constexpr float kLargest = kMaxBf16;
  static constexpr BitsLane kExponentMask = 0x7F80;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const hn::Rebind<uint16_t, D> du16;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const Lane*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
  template <class D>
  static HWY_INLINE void Store(D /*d*/, hn::Vec<D> value, std::byte* to) {
    const hn::Rebind<uint16_t, D> du16;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    // Adding just under half a step, plus one when the kept part is odd, rounds to nearest even.
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, rounded)), du16, reinterpret_cast<Lane*>(to));
  }
};

// Stores what fits as it is, a finite value that does not as the largest finite one of its sign,
// and zero where `finite` says that the value came of NaN or infinity.
template <class Format, class D>
HWY_INLINE void StoreSaturated(D d, hn::Vec<D> value, hn::Mask<D> finite, std::byte* to) {
  const auto largest = hn::Set(d, Format::kLargest);
  const auto clamped = hn::Min(hn::Max(value, hn::Neg(largest)), largest);
  Format::Store(d, hn::IfThenElseZero(finite, clamped), to);
}

}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLACKLINE_COMMON_CODEC_FORMATS_INL_H_
