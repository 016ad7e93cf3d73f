#include "worker/precision/tree_accumulator.h"

#include <glog/logging.h>

#include <bit>

namespace slackline::worker {
namespace {

void Scale(std::span<float> values, float factor) {
  if (factor == 1.0f) return;
  for (float& value : values) value *= factor;
}

}  // namespace

TreeAccumulator::TreeAccumulator(size_t leaves, size_t count) : leaves_(leaves) {
  CHECK_GT(leaves, 0u);
  // leaves - 1 leaves are kept at once, as a binary number of that value.
  levels_.resize(static_cast<size_t>(std::bit_width(leaves - 1)));
  for (auto& level : levels_) level.resize(count);
}

void TreeAccumulator::AddLeaf(std::span<const float> leaf, float factor) {
  CHECK_LT(added_ + 1, leaves_) << "the last leaf goes to FinishPart";
  // The lowest free level takes the leaf and all full levels below it: a carry.
  const auto target = static_cast<size_t>(std::countr_one(added_));
  std::vector<float>& sum = levels_[target];
  CHECK_EQ(leaf.size(), sum.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = leaf[i] * factor;
  for (size_t level = 0; level < target; ++level) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = levels_[level][i] + sum[i];
  }
  ++added_;
}

void TreeAccumulator::FinishPart(std::span<float> part, size_t offset, float factor) const {
  CHECK_EQ(added_ + 1, leaves_) << "leaves are missing";
  Scale(part, factor);
  for (size_t level = 0; level < levels_.size(); ++level) {
    if ((added_ >> level & 1) == 0) continue;
    const float* other = levels_[level].data() + offset;
    for (size_t i = 0; i < part.size(); ++i) part[i] = other[i] + part[i];
  }
}

}  // namespace slackline::worker
