#include "common/codec/reference.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/half.h"

namespace slackline::reference {
namespace {

template <class T>
T ReadAt(const std::byte* in, size_t index) {
  T value;
  std::memcpy(&value, in + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void WriteAt(T value, std::byte* out, size_t index) {
  std::memcpy(out + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

float LargestFinite(CodecId codec) {
  switch (codec) {
    case CodecId::kFp16:
      return kMaxFp16;
    case CodecId::kBf16:
      return kMaxBf16;
    default:
      return std::numeric_limits<float>::max();
  }
}

float DecodeOne(CodecId codec, const std::byte* in, size_t index) {
  switch (codec) {
    case CodecId::kFp32:
      return ReadAt<float>(in, index);
    case CodecId::kFp16:
      return FloatFromFp16(ReadAt<uint16_t>(in, index));
    case CodecId::kBf16:
      return FloatFromBf16(ReadAt<uint16_t>(in, index));
    default:
      LOG(FATAL) << "codec " << static_cast<int>(codec) << " is not dense";
      return 0;
  }
}

void EncodeOne(CodecId codec, float value, std::byte* out, size_t index) {
  switch (codec) {
    case CodecId::kFp32:
      return WriteAt(value, out, index);
    case CodecId::kFp16:
      return WriteAt(Fp16FromFloat(value), out, index);
    case CodecId::kBf16:
      return WriteAt(Bf16FromFloat(value), out, index);
    default:
      LOG(FATAL) << "codec " << static_cast<int>(codec) << " is not dense";
  }
}

EncodeStats Encode(CodecId codec, const float* in, size_t count, float scale, std::byte* out) {
  const float largest = LargestFinite(codec);
  EncodeStats stats;
  for (size_t i = 0; i < count; ++i) {
    float value = in[i] * scale;
    if (!std::isfinite(in[i])) {
      ++stats.non_finite;
      value = 0;
    } else if (std::fabs(value) > largest) {
      ++stats.saturated;
      value = std::copysign(largest, value);
    }
    EncodeOne(codec, value, out, i);
  }
  return stats;
}

void Decode(CodecId codec, const std::byte* in, size_t count, float scale, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = DecodeOne(codec, in, i) * scale;
}

void DecodeAdd(CodecId codec, const std::byte* in, size_t count, float scale, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] += DecodeOne(codec, in, i) * scale;
}

size_t FirstNonFinite(CodecId codec, const std::byte* in, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(DecodeOne(codec, in, i))) return i;
  }
  return count;
}

}  // namespace slackline::reference
