#include "common/codec/block_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/byte_order.h"
#include "common/codec/arithmetic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/block_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's headers come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that two vectors divide the smallest block.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
using Uints = hn::RebindToUnsigned<Floats>;
using Vector = hn::Vec<Floats>;

constexpr Floats d;
constexpr size_t kLanes = hn::MaxLanes(d);

// The rare vectors with a value that is not finite or too large.
HWY_NOINLINE void LoadReplaced(const float* in, const float* residual, float scale, float* out,
                               EncodeStats* stats) {
  for (size_t i = 0; i < 2 * kLanes; ++i) {
    const float kept = residual == nullptr ? 0.0f : residual[i];
    const bool finite = std::isfinite(in[i]);
    const float value = finite ? in[i] * scale + kept : kept;
    stats->non_finite += finite ? 0 : 1;
    stats->saturated += std::fabs(value) > kLargestCoded ? 1 : 0;
    out[i] = std::clamp(value, -kLargestCoded, kLargestCoded);
  }
}

template <bool kResidual>
HWY_INLINE Vector ValueAt(const float* in, const float* residual, Vector scale) {
  // Without a residual zero is added: it makes a negative zero positive, as a residual of zero
  // does.
  Vector kept = hn::Zero(d);
  if constexpr (kResidual) kept = hn::LoadU(d, residual);
  return hn::Add(hn::Mul(hn::LoadU(d, in), scale), kept);
}

template <bool kResidual>
float LoadTile(const float* in, const float* residual, size_t count, float scale, float* out,
               EncodeStats* stats) {
  const Vector scales = hn::Set(d, scale);
  const Vector limit = hn::Set(d, kLargestCoded);
  Vector largest0 = hn::Zero(d);
  Vector largest1 = hn::Zero(d);
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const float* kept = kResidual ? residual + i : nullptr;
    Vector value0 = ValueAt<kResidual>(in + i, kept, scales);
    Vector value1 = ValueAt<kResidual>(in + i + kLanes, kept + (kResidual ? kLanes : 0), scales);
    // False for NaN too.
    const auto fits = hn::And(hn::Le(hn::Abs(value0), limit), hn::Le(hn::Abs(value1), limit));
    if (HWY_UNLIKELY(!hn::AllTrue(d, fits))) {
      LoadReplaced(in + i, kept, scale, out + i, stats);
      value0 = hn::LoadU(d, out + i);
      value1 = hn::LoadU(d, out + i + kLanes);
    } else {
      hn::StoreU(value0, d, out + i);
      hn::StoreU(value1, d, out + i + kLanes);
    }
    largest0 = hn::Max(largest0, hn::Abs(value0));
    largest1 = hn::Max(largest1, hn::Abs(value1));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest0, largest1)));
}

float Load(const float* in, const float* residual, size_t count, float scale, float* out,
           EncodeStats* stats) {
  return residual == nullptr ? LoadTile<false>(in, residual, count, scale, out, stats)
                             : LoadTile<true>(in, residual, count, scale, out, stats);
}

// RandomBits of common/codec/arithmetic.h, for positions first, first + 1, ...
HWY_INLINE hn::Vec<Uints> RandomBitsFrom(uint64_t seed, uint32_t first) {
  const Uints du;
  const auto position =
      hn::Xor(hn::Iota(du, first), hn::Set(du, static_cast<uint32_t>(seed >> 32)));
  auto x = hn::Add(hn::Mul(position, hn::Set(du, 0x9E3779B9u)),
                   hn::Set(du, static_cast<uint32_t>(seed)));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x7FEB352Du));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, 0x846CA68Bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

enum class Rounding : uint8_t { kNearest, kStochastic, kLimited };

// Integers from -most to most.
template <Rounding kRounding>
HWY_INLINE float Quantize(const BlockValues& in, int32_t most, int8_t* codes) {
  const BlockScale block = ScaleOfBlock(in.largest, static_cast<float>(most));
  if (block.scale == 0) {
    std::memset(codes, 0, in.block);
    return 0;
  }
  const Ints di;
  const hn::Rebind<int8_t, Floats> d8;
  const Vector scales = hn::Set(d, block.scale);
  const Vector inverse = hn::Set(d, block.inverse);
  for (size_t i = 0; i < in.block; i += kLanes) {
    const Vector value = hn::LoadU(d, in.values + i);
    Vector scaled = hn::Mul(value, inverse);
    if constexpr (kRounding == Rounding::kStochastic) {
      const auto bits =
          hn::BitCast(di, RandomBitsFrom(in.seed, in.first + static_cast<uint32_t>(i)));
      scaled = hn::Add(scaled, hn::Mul(hn::ConvertTo(d, bits), hn::Set(d, 0x1p-32f)));
    }
    auto code = hn::NearestInt(scaled);
    // Rounding to nearest cannot leave the range: most * (1 + 2^-22) rounds to most.
    if constexpr (kRounding != Rounding::kNearest)
      code = hn::Clamp(code, hn::Set(di, -most), hn::Set(di, most));
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    hn::StoreU(hn::Sub(value, hn::Mul(hn::ConvertTo(d, code), scales)), d, in.values + i);
  }
  return block.scale;
}

template <Rounding kRounding>
float EncodeInt8(const BlockValues& in, std::byte* codes) {
  return Quantize<kRounding>(in, 127, reinterpret_cast<int8_t*>(codes));
}

// Pairs of integers become bytes: the first of a pair is the low half.
template <Rounding kRounding>
float EncodeInt4(const BlockValues& in, std::byte* codes) {
  HWY_ALIGN int8_t wide[kMaxBlock];
  const float scale = Quantize<kRounding>(in, 7, wide);
  const hn::CappedTag<uint16_t, 16> du16;
  const hn::RebindToSigned<decltype(du16)> di16;
  const hn::Rebind<uint8_t, decltype(du16)> du8;
  auto* out = reinterpret_cast<uint8_t*>(codes);
  for (size_t i = 0; i < in.block / 2; i += hn::Lanes(du16)) {
    const auto pair = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(wide) + i);
    const auto low = hn::And(pair, hn::Set(du16, uint16_t{0x000F}));
    const auto high = hn::And(hn::ShiftRight<4>(pair), hn::Set(du16, uint16_t{0x00F0}));
    hn::StoreU(hn::DemoteTo(du8, hn::BitCast(di16, hn::Or(low, high))), du8, out + i);
  }
  return scale;
}

// Float8::FromFloat and ToFloat of common/codec/arithmetic.h, on lanes of 32 bits.
template <class Format>
HWY_INLINE hn::Vec<Uints> Float8FromVector(Vector value) {
  const Uints du;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const auto odd = hn::And(hn::ShiftRight<Format::kShift>(magnitude), hn::Set(du, 1u));
  constexpr uint32_t kHalf = (1u << (Format::kShift - 1)) - 1;
  const auto normal = hn::ShiftRight<Format::kShift>(
      hn::Add(hn::Add(magnitude, hn::Set(du, kHalf - Format::kRebias)), odd));
  const auto magic = hn::Set(du, Format::kMagicBits);
  const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic));
  const auto subnormal = hn::Sub(hn::BitCast(du, sum), magic);
  const auto smallest = hn::BitCast(d, hn::Set(du, Format::kSmallestNormalBits));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(hn::BitCast(d, magnitude), smallest));
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), sign);
}

template <class Format>
HWY_INLINE Vector VectorFromFloat8(hn::Vec<Uints> code) {
  const Uints du;
  const Ints di;
  const auto magnitude = hn::And(code, hn::Set(du, 0x7Fu));
  const auto magic = hn::Set(du, Format::kMagicBits);
  const auto normal =
      hn::Add(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(du, Format::kRebias));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magic, magnitude)), hn::BitCast(d, magic));
  const auto is_subnormal = hn::RebindMask(
      d, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 1 << Format::kMantissaBits)));
  const auto value = hn::IfThenElse(is_subnormal, subnormal, hn::BitCast(d, normal));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80u)));
  return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
}

template <class Format>
float EncodeFloat8(const BlockValues& in, std::byte* codes) {
  const BlockScale block = ScaleOfBlock(in.largest, Format::Largest());
  if (block.scale == 0) {
    std::memset(codes, 0, in.block);
    return 0;
  }
  const Ints di;
  const hn::Rebind<uint8_t, Floats> d8;
  const Vector scales = hn::Set(d, block.scale);
  const Vector inverse = hn::Set(d, block.inverse);
  for (size_t i = 0; i < in.block; i += kLanes) {
    const Vector value = hn::LoadU(d, in.values + i);
    const auto code = Float8FromVector<Format>(hn::Mul(value, inverse));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, code)), d8, reinterpret_cast<uint8_t*>(codes) + i);
    const Vector decoded = hn::Mul(VectorFromFloat8<Format>(code), scales);
    hn::StoreU(hn::Sub(value, decoded), d, in.values + i);
  }
  return block.scale;
}

template <bool kAdd>
HWY_INLINE void Emit(Vector value, float* out) {
  if constexpr (kAdd) value = hn::Add(hn::LoadU(d, out), value);
  hn::StoreU(value, d, out);
}

template <bool kAdd>
void DecodeInt8(const std::byte* codes, size_t block, float factor, float* out) {
  const hn::Rebind<int8_t, Floats> d8;
  const Ints di;
  const auto* in = reinterpret_cast<const int8_t*>(codes);
  const Vector factors = hn::Set(d, factor);
  for (size_t i = 0; i < block; i += kLanes) {
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, in + i));
    Emit<kAdd>(hn::Mul(hn::ConvertTo(d, code), factors), out + i);
  }
}

template <class Format, bool kAdd>
void DecodeFloat8(const std::byte* codes, size_t block, float factor, float* out) {
  const hn::Rebind<uint8_t, Floats> d8;
  const Uints du;
  const auto* in = reinterpret_cast<const uint8_t*>(codes);
  const Vector factors = hn::Set(d, factor);
  for (size_t i = 0; i < block; i += kLanes) {
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, in + i));
    Emit<kAdd>(hn::Mul(VectorFromFloat8<Format>(code), factors), out + i);
  }
}

template <bool kAdd>
void DecodeInt4(const std::byte* codes, size_t block, float factor, float* out) {
  HWY_ALIGN int8_t wide[kMaxBlock];
  const hn::CappedTag<uint16_t, 16> du16;
  const hn::Rebind<uint8_t, decltype(du16)> du8;
  const auto* in = reinterpret_cast<const uint8_t*>(codes);
  const auto signs = hn::Set(du16, uint16_t{0x0808});
  const auto extension = hn::Set(du16, uint16_t{0xF0 / 0x08});
  for (size_t i = 0; i < block / 2; i += hn::Lanes(du16)) {
    const auto byte = hn::PromoteTo(du16, hn::LoadU(du8, in + i));
    const auto spread =
        hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(du16, uint16_t{0x0F0F}));
    // A sign bit of four bits becomes the upper half of its byte.
    const auto upper = hn::Mul(hn::And(spread, signs), extension);
    hn::StoreU(hn::Or(spread, upper), du16, reinterpret_cast<uint16_t*>(wide) + i);
  }
  DecodeInt8<kAdd>(reinterpret_cast<const std::byte*>(wide), block, factor, out);
}

HWY_INLINE float SumOfMagnitudes(const float* values, size_t block) {
  HWY_ALIGN float sums[kPartialSums];
  for (size_t column = 0; column < kPartialSums; column += kLanes) {
    Vector sum = hn::Zero(d);
    for (size_t i = column; i < block; i += kPartialSums) {
      sum = hn::Add(sum, hn::Abs(hn::LoadU(d, values + i)));
    }
    hn::Store(sum, d, sums + column);
  }
  for (size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Bit i % 8 of byte i / 8 becomes lane i of the masks that mask_at(i) gives for kLanes values.
template <class MaskAt>
HWY_INLINE void StoreBits(size_t count, std::byte* out, const MaskAt& mask_at) {
  // Eight lanes at least are a byte at a time; with fewer, a byte takes several vectors.
  constexpr size_t kStep = std::max<size_t>(kLanes, 8);
  for (size_t i = 0; i < count; i += kStep) {
    uint32_t bits = 0;
    for (size_t lane = 0; lane < kStep; lane += kLanes) {
      uint8_t mask[8] = {};  // StoreMaskBits may write this many.
      (void)hn::StoreMaskBits(d, mask_at(i + lane), mask);
      bits |= (mask[0] | static_cast<uint32_t>(mask[1]) << 8) << lane;
    }
    out[i / 8] = static_cast<std::byte>(bits & 0xFF);
    if constexpr (kStep > 8) out[i / 8 + 1] = static_cast<std::byte>(bits >> 8);
  }
}

// The mean magnitude of a block with each value's sign; a bit says negative.
float EncodeOneBit(const BlockValues& in, std::byte* codes) {
  const float mean = SumOfMagnitudes(in.values, in.block) / static_cast<float>(in.count);
  const Vector positive = hn::Set(d, mean);
  const Vector negative = hn::Set(d, -mean);
  StoreBits(in.block, codes, [&](size_t i) HWY_ATTR {
    const Vector value = hn::LoadU(d, in.values + i);
    const auto is_negative = hn::Lt(value, hn::Zero(d));
    const Vector coded = hn::IfThenElse(is_negative, negative, positive);
    hn::StoreU(hn::Sub(value, coded), d, in.values + i);
    return is_negative;
  });
  return mean;
}

// Brings bit i of a word to the place of a float's sign.
HWY_ALIGN constexpr std::array<uint32_t, 32> kToSign = [] {
  std::array<uint32_t, 32> shifts{};
  for (uint32_t i = 0; i < 32; ++i) shifts[i] = 31 - i;
  return shifts;
}();

template <bool kAdd>
void DecodeOneBit(const std::byte* codes, size_t block, float factor, float* out) {
  const Uints du;
  const auto magnitude = hn::BitCast(du, hn::Set(d, factor));
  const auto sign_bit = hn::Set(du, 0x80000000u);
  for (size_t i = 0; i < block; i += 32) {
    const auto word = hn::Set(du, LoadLe<uint32_t>(codes + i / 8));
    for (size_t lane = 0; lane < 32; lane += kLanes) {
      const auto sign = hn::And(hn::Shl(word, hn::LoadU(du, kToSign.data() + lane)), sign_bit);
      Emit<kAdd>(hn::BitCast(d, hn::Xor(magnitude, sign)), out + i + lane);
    }
  }
}

// Highway 1.0.3's CompressStore would write positions at once, but for AVX2 GCC copies its table of
// 1 KiB on every call.
void Mark(const float* values, size_t count, float low, float high, std::byte* marks) {
  const Vector lows = hn::Set(d, low);
  const Vector highs = hn::Set(d, high);
  StoreBits(count, marks, [&](size_t i) HWY_ATTR {
    const Vector magnitude = hn::Abs(hn::LoadU(d, values + i));
    return hn::And(hn::Ge(magnitude, lows), hn::Lt(magnitude, highs));
  });
}

size_t FirstAbove(const std::byte* codes, size_t count, uint8_t limit) {
  const hn::ScalableTag<uint8_t> du8;
  const auto* in = reinterpret_cast<const uint8_t*>(codes);
  const auto limits = hn::Set(du8, limit);
  const auto magnitude = hn::Set(du8, uint8_t{0x7F});
  size_t i = 0;
  for (; i + hn::Lanes(du8) <= count; i += hn::Lanes(du8)) {
    const auto larger = hn::Max(hn::And(hn::LoadU(du8, in + i), magnitude), limits);
    if (!hn::AllTrue(du8, hn::Eq(larger, limits))) break;
  }
  while (i < count && (in[i] & 0x7F) <= limit) ++i;
  return i;
}

template <class Format>
constexpr BlockFormatKernels kFloat8Kernels = {EncodeFloat8<Format>, DecodeFloat8<Format, false>,
                                               DecodeFloat8<Format, true>};

constexpr BlockKernels kKernels = {
    .load = Load,
    .mark = Mark,
    .first_above = FirstAbove,
    .int8 = {EncodeInt8<Rounding::kNearest>, DecodeInt8<false>, DecodeInt8<true>},
    .int8_stochastic = {EncodeInt8<Rounding::kStochastic>, DecodeInt8<false>, DecodeInt8<true>},
    .int8_limited = {EncodeInt8<Rounding::kLimited>, DecodeInt8<false>, DecodeInt8<true>},
    .int4 = {EncodeInt4<Rounding::kNearest>, DecodeInt4<false>, DecodeInt4<true>},
    .int4_stochastic = {EncodeInt4<Rounding::kStochastic>, DecodeInt4<false>, DecodeInt4<true>},
    .onebit = {EncodeOneBit, DecodeOneBit<false>, DecodeOneBit<true>},
    .fp8_e4m3 = kFloat8Kernels<E4M3>,
    .fp8_e5m2 = kFloat8Kernels<E5M2>,
};

const BlockKernels* Kernels() { return &kKernels; }

}  // namespace
}  // namespace slackline::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline {
namespace {
HWY_EXPORT(Kernels);
}  // namespace

const BlockKernels& GetBlockKernels() { return *HWY_DYNAMIC_DISPATCH(Kernels)(); }

}  // namespace slackline
#endif  // HWY_ONCE
