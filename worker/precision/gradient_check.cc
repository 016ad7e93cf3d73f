#include "worker/precision/gradient_check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace slackline::worker {
namespace {

constexpr size_t kLanes = 8;
constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;
constexpr uint32_t kInfinityBits = 0x7F800000;
constexpr float kLargestFp16 = 65504.0f;
// bf16 rounds to nearest: what lies above the middle between its largest value and 2^128 would
// become infinite.
constexpr float kLargestBf16 = 3.3895314e38f;

}  // namespace

void GradientCheck::Merge(const GradientCheck& other) {
  finite = finite && other.finite;
  max_abs = std::max(max_abs, other.max_abs);
  sum_squares += other.sum_squares;
}

GradientCheck CheckGradient(std::span<const float> gradient) {
  // Magnitudes compare like their bits, so that an integer maximum, which the compiler vectorizes,
  // finds the largest and anything that is not finite at once.
  std::array<uint32_t, kLanes> largest{};
  std::array<double, kLanes> sums{};
  const size_t whole = gradient.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = gradient[i + lane];
      largest[lane] = std::max(largest[lane], std::bit_cast<uint32_t>(value) & kMagnitudeMask);
      sums[lane] += double{value} * double{value};
    }
  }
  for (size_t i = whole; i < gradient.size(); ++i) {
    const float value = gradient[i];
    largest[i - whole] =
        std::max(largest[i - whole], std::bit_cast<uint32_t>(value) & kMagnitudeMask);
    sums[i - whole] += double{value} * double{value};
  }
  GradientCheck check;
  const uint32_t bits = *std::max_element(largest.begin(), largest.end());
  check.finite = bits < kInfinityBits;
  check.max_abs = std::bit_cast<float>(bits);
  for (const double sum : sums) check.sum_squares += sum;
  return check;
}

bool FitsCodec(const GradientCheck& check, CodecId codec) {
  if (!check.finite) return false;
  if (codec == CodecId::kFp16) return check.max_abs <= kLargestFp16;
  if (codec == CodecId::kBf16) return check.max_abs <= kLargestBf16;
  return true;
}

float ClipFactor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? static_cast<float>(max_norm / norm) : 1.0f;
}

}  // namespace slackline::worker
