#include "common/codec/residual_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/codec/arithmetic.h"
#include "common/codec/block_kernels.h"
#include "common/codec/residual_codec.h"
#include "common/half.h"
#include "common/random.h"

namespace slackline::reference {
namespace {

// A payload under construction, in bits, least significant first.
class BitString {
 public:
  void Append(uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) bits_.push_back((value >> i & 1) != 0);
  }
  void AppendFloat(float value) { Append(std::bit_cast<uint32_t>(value), 32); }
  void PadToByte() { bits_.resize((bits_.size() + 7) / 8 * 8); }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> bytes((bits_.size() + 7) / 8);
    for (size_t i = 0; i < bits_.size(); ++i) {
      if (bits_[i]) bytes[i / 8] |= std::byte{1} << (i % 8);
    }
    return bytes;
  }

 private:
  std::vector<bool> bits_;
};

void AppendHeader(const PayloadHeader& header, BitString* out) {
  out->Append(static_cast<uint8_t>(header.codec), 8);
  out->Append(1, 8);
  out->Append(header.shape, 8);
  out->Append(static_cast<uint8_t>(header.values), 8);
  out->Append(header.count, 32);
  out->Append(header.kept, 32);
  out->AppendFloat(header.scale);
}

std::vector<float> ValuesOf(std::span<const float> in, float scale, std::span<const float> residual,
                            EncodeStats* stats) {
  std::vector<float> values(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (!std::isfinite(in[i])) {
      ++stats->non_finite;
    } else {
      values[i] = in[i] * scale;
    }
    values[i] += residual.empty() ? 0.0f : residual[i];
    if (std::fabs(values[i]) > kLargestCoded) {
      ++stats->saturated;
      values[i] = std::copysign(kLargestCoded, values[i]);
    }
  }
  return values;
}

float MeanMagnitude(std::span<const float> values) {
  float sums[kPartialSums] = {};
  for (size_t i = 0; i < values.size(); ++i) sums[i % kPartialSums] += std::fabs(values[i]);
  for (size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0] / static_cast<float>(values.size());
}

// One block: its codes and decoded values are appended, its scale is returned.
struct Block {
  CodecId codec;
  size_t first;
  std::optional<uint64_t> seed;
  std::span<const float> values;
};

float EncodeOneBit(const Block& block, BitString* codes, std::vector<float>* decoded) {
  const float mean = MeanMagnitude(block.values);
  for (const float value : block.values) {
    codes->Append(value < 0 ? 1 : 0, 1);
    decoded->push_back(value < 0 ? -mean : mean);
  }
  return mean;
}

float LargestCode(CodecId codec) {
  if (codec == CodecId::kInt8) return 127;
  if (codec == CodecId::kInt4) return 7;
  return codec == CodecId::kFp8E4M3 ? 448 : 57344;
}

float EncodeBlock(const Block& block, BitString* codes, std::vector<float>* decoded) {
  if (block.codec == CodecId::kOneBit) return EncodeOneBit(block, codes, decoded);
  float largest = 0;
  for (const float value : block.values) largest = std::max(largest, std::fabs(value));
  const float most = LargestCode(block.codec);
  const auto [scale, inverse] = ScaleOfBlock(largest, most);
  for (size_t i = 0; i < block.values.size(); ++i) {
    const float value = block.values[i];
    if (block.codec == CodecId::kFp8E4M3 || block.codec == CodecId::kFp8E5M2) {
      const bool is_e4m3 = block.codec == CodecId::kFp8E4M3;
      // A block of zeros has no negative ones.
      const float scaled = scale == 0 ? 0 : value * inverse;
      const uint8_t code = is_e4m3 ? E4M3::FromFloat(scaled) : E5M2::FromFloat(scaled);
      codes->Append(code, 8);
      decoded->push_back((is_e4m3 ? E4M3::ToFloat(code) : E5M2::ToFloat(code)) * scale);
    } else {
      const auto position = static_cast<uint32_t>(block.first + i);
      const float dither = block.seed ? Dither(*block.seed, position) : 0;
      const int32_t code =
          scale == 0 ? 0 : IntegerCode(value, inverse, dither, static_cast<int32_t>(most));
      codes->Append(static_cast<uint64_t>(code), block.codec == CodecId::kInt8 ? 8 : 4);
      decoded->push_back(static_cast<float>(code) * scale);
    }
  }
  return scale;
}

std::vector<float> Difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return difference;
}

// Indices of the `kept` largest magnitudes, ascending.
std::vector<size_t> Selection(const std::vector<float>& values, size_t kept) {
  const auto key = [&](size_t i) { return (std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFF) >> 9; };
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) > key(b); });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

// The power of two that brings `largest` to [2^14, 2^15), or [2^6, 2^7) for integers.
float ValueScale(ValueFormat format, float largest) {
  int exponent = 0;
  (void)std::frexp(std::max(largest, kSmallestScaled), &exponent);  // In [2^(e - 1), 2^e).
  return std::ldexp(1.0f, exponent - (format == ValueFormat::kFp16 ? 15 : 7));
}

// Appends the code of one sent value; what it decodes to.
float AppendValue(ValueFormat format, float value, float scale, BitString* out) {
  if (format == ValueFormat::kFp16) {
    const uint16_t half = Fp16FromFloat(value / scale);
    out->Append(half, 16);
    return FloatFromFp16(half) * scale;
  }
  const int32_t code =
      std::min(127, std::max(-127, static_cast<int>(std::nearbyint(value / scale))));
  out->Append(static_cast<uint64_t>(code), 8);
  return static_cast<float>(code) * scale;
}

}  // namespace

Encoded EncodeByBlock(CodecId codec, size_t block, std::optional<uint64_t> seed,
                      std::span<const float> in, float scale, std::span<const float> residual) {
  Encoded result;
  const std::vector<float> values = ValuesOf(in, scale, residual, &result.stats);
  BitString payload;
  BitString codes;
  AppendHeader({.codec = codec,
                .shape = static_cast<uint8_t>(std::countr_zero(block)),
                .count = static_cast<uint32_t>(in.size())},
               &payload);
  for (size_t i = 0; i < values.size(); i += block) {
    const size_t n = std::min(block, values.size() - i);
    const Block one = {codec, i, seed, std::span(values).subspan(i, n)};
    payload.AppendFloat(EncodeBlock(one, &codes, &result.decoded));
  }
  result.payload = payload.Bytes();
  const std::vector<std::byte> tail = codes.Bytes();
  result.payload.insert(result.payload.end(), tail.begin(), tail.end());
  result.residual = Difference(values, result.decoded);
  return result;
}

Encoded EncodeTopK(size_t kept, ValueFormat format, std::span<const float> in, float scale,
                   std::span<const float> residual) {
  Encoded result;
  const std::vector<float> values = ValuesOf(in, scale, residual, &result.stats);
  const std::vector<size_t> selection = Selection(values, kept);
  float largest = 0;
  for (const size_t i : selection) largest = std::max(largest, std::fabs(values[i]));
  const float value_scale = ValueScale(format, largest);
  size_t low_bits = 0;
  while (kept != 0 && (kept << (low_bits + 1)) <= values.size()) ++low_bits;

  BitString payload;
  AppendHeader({.codec = CodecId::kTopK,
                .shape = static_cast<uint8_t>(low_bits),
                .values = format,
                .count = static_cast<uint32_t>(in.size()),
                .kept = static_cast<uint32_t>(kept),
                .scale = value_scale},
               &payload);
  result.decoded.resize(values.size());
  for (const size_t i : selection) {
    result.decoded[i] = AppendValue(format, values[i], value_scale, &payload);
  }
  for (const size_t i : selection) payload.Append(i, low_bits);
  payload.PadToByte();
  // Every step of the upper bits is a zero, every index a one.
  const size_t last_high = values.empty() ? 0 : (values.size() - 1) >> low_bits;
  size_t high = 0;
  for (const size_t i : selection) {
    for (; high < i >> low_bits; ++high) payload.Append(0, 1);
    payload.Append(1, 1);
  }
  for (; high < last_high; ++high) payload.Append(0, 1);
  result.payload = payload.Bytes();
  result.residual = Difference(values, result.decoded);
  return result;
}

Encoded EncodeRandK(size_t kept, ValueFormat format, float factor, uint64_t seed,
                    std::span<const float> in, float scale, std::span<const float> residual) {
  Encoded result;
  const std::vector<float> values = ValuesOf(in, scale, residual, &result.stats);
  std::vector<size_t> selection(kept);
  float largest = 0;
  for (size_t i = 0; i < kept; ++i) {
    selection[i] = Permutation(values.size(), seed)(i);
    largest = std::max(largest, std::fabs(values[selection[i]] * factor));
  }
  const float limited = std::min(largest, kLargestCoded);
  const float value_scale = ValueScale(format, limited);
  BitString payload;
  AppendHeader({.codec = CodecId::kRandK,
                .values = format,
                .count = static_cast<uint32_t>(in.size()),
                .kept = static_cast<uint32_t>(kept),
                .scale = value_scale},
               &payload);
  payload.Append(seed, 64);
  result.decoded.resize(values.size());
  for (const size_t i : selection) {
    const float value = std::clamp(values[i] * factor, -kLargestCoded, kLargestCoded);
    result.decoded[i] = AppendValue(format, value, value_scale, &payload);
  }
  result.payload = payload.Bytes();
  result.residual = Difference(values, result.decoded);
  return result;
}

}  // namespace slackline::reference
