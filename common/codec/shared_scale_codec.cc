#include "common/codec/shared_scale_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/byte_order.h"
#include "common/codec/array_math.h"

namespace slackline {

SharedScaleCodec::SharedScaleCodec(size_t block)
    : block_(block),
      codec_(CodecId::kSharedScale8, "sharedscale8", block, BlockCodec::Rounding::kNearest) {}

void SharedScaleCodec::FindLargest(const float* in, size_t count, float scale,
                                   const float* residual, float* largest) const {
  codec_.FindLargest(in, count, scale, residual, largest);
}

EncodeStats SharedScaleCodec::EncodeShared(const float* in, size_t count, float scale,
                                           const float* residual, float* next_residual,
                                           const float* largest, std::byte* out) const {
  return codec_.EncodeBlocks(in, count, scale, residual, next_residual, 0, largest, out);
}

EncodeStats SharedScaleCodec::Encode(const float* in, size_t count, float scale,
                                     std::byte* out) const {
  return codec_.EncodeBlocks(in, count, scale, nullptr, nullptr, 0, nullptr, out);
}

const std::byte* SharedScaleCodec::Codes(const std::byte* in, size_t count) const {
  return in + kPayloadHeaderBytes + ScaleCount(count) * sizeof(float);
}

bool SharedScaleCodec::SameScales(const std::byte* a, const std::byte* b, size_t count) const {
  return std::memcmp(a + kPayloadHeaderBytes, b + kPayloadHeaderBytes,
                     ScaleCount(count) * sizeof(float)) == 0;
}

void SharedScaleCodec::AddCodes(const std::byte* in, size_t count, bool first, int32_t* sum) const {
  const auto* codes = reinterpret_cast<const int8_t*>(Codes(in, count));
  first ? WidenArray(sum, codes, count) : AddWidened(sum, codes, count);
}

void SharedScaleCodec::DecodeSum(const std::byte* in, const int32_t* sum, size_t count, float scale,
                                 float* out) const {
  const std::byte* scales = in + kPayloadHeaderBytes;
  for (size_t i = 0; i < count; i += block_, scales += sizeof(float)) {
    const float factor = std::bit_cast<float>(LoadLe<uint32_t>(scales)) * scale;
    ScaleIntegers(out + i, sum + i, std::min(block_, count - i), factor);
  }
}

}  // namespace slackline
