#include "common/optimizer/fused_step.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace slackline {
namespace {

// Between updating weights and encoding their copy: 32 KiB of FP32, which stay in the second-level
// cache along with their gradient and state. So the copy reads no memory again. Smaller tiles were
// slower: each costs two starts of a loop, and at 1 KiB those halve the speed.
constexpr size_t kCopyTile = 8192;
static_assert(kCopyTile % kUpdateMultiple == 0);

constexpr size_t kMostValueBytes = sizeof(float);  // Of the dense codecs.

size_t PayloadBytes(const GradientView& gradient, size_t count) {
  return gradient.payload == nullptr ? 0 : FindCodec(gradient.payload_codec)->EncodedBytes(count);
}

ParameterView Slice(const ParameterView& all, size_t begin, size_t count) {
  ParameterView part = all;
  part.weights += begin;
  part.weights_out += begin;
  if (part.slot0 != nullptr) part.slot0 += begin;
  if (part.slot1 != nullptr) part.slot1 += begin;
  part.count = count;
  return part;
}

GradientView Slice(const GradientView& all, size_t begin) {
  GradientView part = all;
  if (part.sum != nullptr) part.sum += begin;
  if (part.payload != nullptr) part.payload += PayloadBytes(all, begin);
  return part;
}

// Fewer elements than the loop takes at once, through copies with zeros behind them. A zero is a
// harmless gradient for every optimizer: epsilon keeps the divisions finite.
void UpdateTail(UpdateFunction update, const ParameterView& parameters,
                const GradientView& gradient, const UpdateConstants& constants) {
  using Padded = std::array<float, kUpdateMultiple>;
  const size_t bytes = parameters.count * sizeof(float);
  Padded weights{};
  Padded slot0{};
  Padded slot1{};
  Padded sum{};
  std::array<std::byte, kUpdateMultiple * kMostValueBytes> payload{};
  std::memcpy(weights.data(), parameters.weights, bytes);
  if (parameters.slot0 != nullptr) std::memcpy(slot0.data(), parameters.slot0, bytes);
  if (parameters.slot1 != nullptr) std::memcpy(slot1.data(), parameters.slot1, bytes);
  if (gradient.sum != nullptr) std::memcpy(sum.data(), gradient.sum, bytes);
  if (gradient.payload != nullptr) {
    std::memcpy(payload.data(), gradient.payload, PayloadBytes(gradient, parameters.count));
  }
  GradientView padded_gradient = gradient;
  if (gradient.sum != nullptr) padded_gradient.sum = sum.data();
  if (gradient.payload != nullptr) padded_gradient.payload = payload.data();
  update({.weights = weights.data(),
          .weights_out = weights.data(),
          .slot0 = slot0.data(),
          .slot1 = slot1.data(),
          .count = kUpdateMultiple},
         padded_gradient, constants);
  std::memcpy(parameters.weights_out, weights.data(), bytes);
  if (parameters.slot0 != nullptr) std::memcpy(parameters.slot0, slot0.data(), bytes);
  if (parameters.slot1 != nullptr) std::memcpy(parameters.slot1, slot1.data(), bytes);
}

void UpdateAll(UpdateFunction update, const ParameterView& parameters, const GradientView& gradient,
               const UpdateConstants& constants) {
  const size_t whole = parameters.count / kUpdateMultiple * kUpdateMultiple;
  if (whole > 0) update(Slice(parameters, 0, whole), gradient, constants);
  if (whole == parameters.count) return;
  UpdateTail(update, Slice(parameters, whole, parameters.count - whole), Slice(gradient, whole),
             constants);
}

}  // namespace

void RunFusedStep(UpdateFunction update, const ParameterView& parameters,
                  const GradientView& gradient, const UpdateConstants& constants) {
  if (parameters.copy_out == nullptr) return UpdateAll(update, parameters, gradient, constants);
  const Codec& copy = *FindCodec(parameters.copy_codec);
  for (size_t begin = 0; begin < parameters.count; begin += kCopyTile) {
    const size_t count = std::min(kCopyTile, parameters.count - begin);
    UpdateAll(update, Slice(parameters, begin, count), Slice(gradient, begin), constants);
    (void)copy.Encode(parameters.weights_out + begin, count, 1,
                      parameters.copy_out + copy.EncodedBytes(begin));
  }
}

}  // namespace slackline
