#include "common/random.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace slackline {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: SplitMix64's increment.

}  // namespace

uint64_t Mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

Rng::Rng(uint64_t seed) {
  for (uint64_t& word : state_) word = Mix64(seed += kGolden);
}

uint64_t Rng::Next() {
  const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Rng::Below(uint64_t bound) {
  DCHECK_GT(bound, 0u);
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(Next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    // The 2^64 mod bound lowest residues would be drawn once too often; each redraw is needed with
    // probability bound / 2^64 at most.
    const uint64_t excess = -bound % bound;
    while (static_cast<uint64_t>(product) < excess) product = static_cast<Wide>(Next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

double Rng::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

double Rng::Normal() {
  if (std::exchange(has_spare_normal_, false)) return spare_normal_;
  // A point in the unit disc: accepted with probability pi / 4 each time.
  for (;;) {
    const double x = 2 * Uniform() - 1;
    const double y = 2 * Uniform() - 1;
    const double square = x * x + y * y;
    if (square >= 1 || square == 0) continue;
    const double factor = std::sqrt(-2 * std::log(square) / square);
    spare_normal_ = y * factor;
    has_spare_normal_ = true;
    return x * factor;
  }
}

Permutation::Permutation(uint64_t size, uint64_t seed) : size_(size) {
  CHECK(size > 0 && size <= uint64_t{1} << 62) << "permutation of " << size << " elements";
  const auto bits = static_cast<uint32_t>(std::bit_width(size - 1));
  half_bits_ = std::max(1u, (bits + 1) / 2);
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  for (uint64_t& key : keys_) key = Mix64(seed += kGolden);
}

uint64_t Permutation::operator()(uint64_t position) const {
  DCHECK_LT(position, size_);
  do {
    position = Encrypt(position);
  } while (position >= size_);
  return position;
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & half_mask_;
  for (const uint64_t key : keys_) {
    left ^= Mix64(right ^ key) & half_mask_;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

}  // namespace slackline
