#include "common/codec/selected_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <sstream>

#include "common/codec/arithmetic.h"
#include "common/codec/dense_kernels.h"
#include "common/codec/residual_codec.h"

namespace slackline {

SelectedValues SelectedScratch(size_t count) {
  thread_local size_t room = 0;
  thread_local std::unique_ptr<uint32_t[]> indices;
  thread_local std::unique_ptr<float[]> values;
  if (count > room) {
    // Not zeroed: pages that no selection reaches are never touched.
    indices = std::make_unique_for_overwrite<uint32_t[]>(count);
    values = std::make_unique_for_overwrite<float[]>(count);
    room = count;
  }
  return {.indices = indices.get(), .values = values.get()};
}

size_t KeptValues(double fraction, size_t count) {
  if (count == 0) return 0;
  const double kept = std::ceil(fraction * static_cast<double>(count));
  return std::clamp<size_t>(static_cast<size_t>(kept), 1, count);
}

size_t ValueBytes(ValueFormat format) { return format == ValueFormat::kFp16 ? 2 : 1; }

float SelectedScale(ValueFormat format, float largest) {
  const int exponent = std::ilogb(std::max(largest, kSmallestScaled));
  return std::ldexp(1.0f, exponent - (format == ValueFormat::kFp16 ? 14 : 6));
}

void EncodeSelected(ValueFormat format, size_t kept, float* values, float* scale,
                    std::byte* codes) {
  float largest = 0;
  for (size_t i = 0; i < kept; ++i) largest = std::max(largest, std::fabs(values[i]));
  *scale = SelectedScale(format, largest);
  const float inverse = 1 / *scale;
  if (format == ValueFormat::kFp16) {
    Fp16Kernels().encode(values, kept, inverse, codes);
    // To add the negative is to subtract, bit for bit.
    Fp16Kernels().decode_add(codes, kept, -*scale, values);
    return;
  }
  for (size_t i = 0; i < kept; ++i) {
    const int32_t code = IntegerCode(values[i], inverse, 0, 127);
    codes[i] = static_cast<std::byte>(code & 0xFF);
    values[i] -= static_cast<float>(code) * *scale;
  }
}

void DecodeSelected(ValueFormat format, const std::byte* codes, size_t first, size_t count,
                    float factor, float* values) {
  if (format == ValueFormat::kFp16) {
    Fp16Kernels().decode(codes + 2 * first, count, factor, values);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(std::to_integer<int8_t>(codes[first + i])) * factor;
  }
}

Status CheckSelected(ValueFormat format, float scale, const std::byte* codes, size_t kept,
                     std::string_view codec_name) {
  std::ostringstream message;
  const float smallest = SelectedScale(format, 0);
  const float largest = SelectedScale(format, kLargestCoded);
  // Not (in range), so that NaN is refused too.
  if (!(scale >= smallest && scale <= largest) ||
      (std::bit_cast<uint32_t>(scale) & 0x7FFFFF) != 0) {
    message << codec_name << " payload has scale " << scale << ", expected a power of two from "
            << smallest << " to " << largest;
    return InvalidArgument(message.str());
  }
  if (format == ValueFormat::kInt8) return OkStatus();
  const size_t bad = Fp16Kernels().first_non_finite(codes, kept);
  if (bad == kept) return OkStatus();
  message << codec_name << " payload has a value that is not finite at position " << bad << " of "
          << kept;
  return InvalidArgument(message.str());
}

}  // namespace slackline
