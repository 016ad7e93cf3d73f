#include "common/codec/residual_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/codec/block_kernels.h"
#include "common/codec/residual_codec.h"
#include "common/half.h"

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

void AppendHeader(CodecId codec, size_t shape, size_t count, size_t kept, float scale,
                  BitString* out) {
  out->Append(static_cast<uint8_t>(codec), 8);
  out->Append(1, 8);
  out->Append(shape, 8);
  out->Append(0, 8);
  out->Append(count, 32);
  out->Append(kept, 32);
  out->AppendFloat(scale);
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

// The scale, codes and decoded values of one block.
float EncodeBlock(CodecId codec, std::span<const float> values, BitString* codes,
                  std::vector<float>* decoded) {
  if (codec == CodecId::kOneBit) {
    const float mean = MeanMagnitude(values);
    for (const float value : values) {
      codes->Append(value < 0 ? 1 : 0, 1);
      decoded->push_back(value < 0 ? -mean : mean);
    }
    return mean;
  }
  const float levels = codec == CodecId::kInt8 ? 127 : 7;
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const bool is_zero = largest < kSmallestScaled;
  const float scale = is_zero ? 0 : largest / levels;
  const float inverse = is_zero ? 0 : levels / largest;
  for (const float value : values) {
    const float code = std::nearbyint(value * inverse);
    codes->Append(static_cast<uint64_t>(static_cast<int64_t>(code)),
                  codec == CodecId::kInt8 ? 8 : 4);
    // Integers have no negative zero.
    decoded->push_back(static_cast<float>(static_cast<int>(code)) * scale);
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

}  // namespace

Encoded EncodeByBlock(CodecId codec, size_t block, std::span<const float> in, float scale,
                      std::span<const float> residual) {
  Encoded result;
  const std::vector<float> values = ValuesOf(in, scale, residual, &result.stats);
  BitString payload;
  BitString codes;
  AppendHeader(codec, static_cast<size_t>(std::countr_zero(block)), in.size(), 0, 0, &payload);
  for (size_t i = 0; i < values.size(); i += block) {
    const size_t n = std::min(block, values.size() - i);
    payload.AppendFloat(
        EncodeBlock(codec, std::span(values).subspan(i, n), &codes, &result.decoded));
  }
  result.payload = payload.Bytes();
  const std::vector<std::byte> tail = codes.Bytes();
  result.payload.insert(result.payload.end(), tail.begin(), tail.end());
  result.residual = Difference(values, result.decoded);
  return result;
}

Encoded EncodeTopK(size_t kept, std::span<const float> in, float scale,
                   std::span<const float> residual) {
  Encoded result;
  const std::vector<float> values = ValuesOf(in, scale, residual, &result.stats);
  float largest = kSmallestScaled;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  int exponent = 0;
  (void)std::frexp(largest, &exponent);  // largest in [2^(exponent - 1), 2^exponent)
  const float value_scale = std::ldexp(1.0f, exponent - 15);
  size_t low_bits = 0;
  while (kept != 0 && (kept << (low_bits + 1)) <= values.size()) ++low_bits;

  BitString payload;
  AppendHeader(CodecId::kTopK, low_bits, in.size(), kept, value_scale, &payload);
  result.decoded.resize(values.size());
  const std::vector<size_t> selection = Selection(values, kept);
  for (const size_t i : selection) {
    const uint16_t half = Fp16FromFloat(values[i] / value_scale);
    payload.Append(half, 16);
    result.decoded[i] = FloatFromFp16(half) * value_scale;
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

}  // namespace slackline::reference
