#include "common/codec/topk_selection.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "common/byte_order.h"
#include "common/codec/block_kernels.h"

namespace slackline {
namespace {

constexpr size_t kBins = 2048;
// The upper bits of a magnitude choose a bin, the next ones a bin within it.
constexpr uint32_t kCoarseShift = 20;
constexpr uint32_t kFineShift = kTopKIgnoredBits;
static_assert(1u << (kCoarseShift - kFineShift) == kBins);
static_assert(1u << (31 - kCoarseShift) == kBins);

// The sample: whole cache lines, spread evenly.
constexpr size_t kSampleLines = 128;
constexpr size_t kLine = 8;
constexpr size_t kSamples = kSampleLines * kLine;
constexpr size_t kLeastSampled = 32 * kSamples;

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// A lower bound for the kept-th largest magnitude, most likely not far below it; 0 when a sample
// says too little.
float EstimateFloor(const Tiles& tiles, size_t kept) {
  const size_t count = tiles.count();
  // Four standard deviations above the expected rank: the sample rarely misleads.
  const double expected = static_cast<double>(kept * kSamples) / static_cast<double>(count);
  const auto rank = static_cast<size_t>(expected + 4 * std::sqrt(expected) + 4);
  if (count < kLeastSampled || rank >= kSamples / 2) return 0;
  std::array<float, kSamples> sample;
  const size_t stride = count / kSampleLines;
  for (size_t i = 0; i < kSamples; ++i) {
    const float magnitude = tiles.MagnitudeBefore(i / kLine * stride + i % kLine);
    sample[i] = magnitude <= kLargestCoded ? magnitude : kLargestCoded;  // NaN too.
  }
  std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<>());
  return sample[rank];
}

// Values that may be among the largest, in ascending order of their indices.
class Candidates {
 public:
  explicit Candidates(size_t count) : count_(count), chosen_(SelectedScratch(count)) {}

  size_t size() const { return size_; }
  void Clear() { size_ = 0; }
  const SelectedValues& chosen() const { return chosen_; }

  // Notes the values of a tile whose magnitude is `floor` or more. All are marked before any is
  // visited: at a few in a hundred, a branch at each vector is taken at random.
  void Note(const float* tile, size_t first, float floor) {
    std::array<std::byte, kTile / 8> marks;
    GetBlockKernels().mark(tile, kTile, floor, std::numeric_limits<float>::infinity(),
                           marks.data());
    const size_t n = std::min(kTile, count_ - first);  // Behind it lie the zeros that pad a tile.
    size_t size = size_;
    for (size_t i = 0; i < n; i += 64) {
      auto word = LoadLe<uint64_t>(&marks[i / 8]);
      if (n - i < 64) word &= (uint64_t{1} << (n - i)) - 1;
      for (; word != 0; word &= word - 1) {
        const size_t position = i + static_cast<size_t>(std::countr_zero(word));
        chosen_.indices[size] = static_cast<uint32_t>(first + position);
        chosen_.values[size++] = tile[position];
      }
    }
    size_ = size;
  }

  // Keeps the `kept` largest; kept <= size().
  void KeepLargest(size_t kept) {
    const Bin coarse = FindBin(0, kCoarseShift, kBins, kept);
    const uint32_t low = coarse.index << kCoarseShift;
    Bin fine = FindBin(low, kFineShift, kBins, coarse.missing);
    const uint32_t tie = low + (fine.index << kFineShift);
    const uint32_t tie_end = tie + (1u << kFineShift);
    size_t size = 0;
    for (size_t i = 0; i < size_; ++i) {
      const uint32_t bits = MagnitudeBits(chosen_.values[i]);
      // Without branches: a third to a half of the candidates are kept, in no pattern.
      const bool is_tie = bits >= tie && bits < tie_end && fine.missing > 0;
      fine.missing -= is_tie ? 1 : 0;
      chosen_.indices[size] = chosen_.indices[i];
      chosen_.values[size] = chosen_.values[i];
      size += bits >= tie_end || is_tie ? 1 : 0;
    }
    size_ = size;
  }

 private:
  // The bin in which the rank-th largest magnitude lies (rank >= 1), and by how much the bins above
  // it fall short of the rank.
  struct Bin {
    uint32_t index = 0;
    size_t missing = 0;
  };

  // Bins are (bits - low) >> shift of the magnitudes in the first `bins` of these.
  Bin FindBin(uint32_t low, uint32_t shift, uint32_t bins, size_t rank) const {
    std::array<uint32_t, kBins + 1> counts{};
    for (size_t i = 0; i < size_; ++i) {
      // Smaller ones wrap around to large numbers; what is outside is counted where none looks.
      ++counts[std::min((MagnitudeBits(chosen_.values[i]) - low) >> shift, bins)];
    }
    Bin bin{.index = bins - 1, .missing = rank};
    while (counts[bin.index] < bin.missing) bin.missing -= counts[bin.index--];
    return bin;
  }

  const size_t count_;
  const SelectedValues chosen_;
  size_t size_ = 0;
};

}  // namespace

SelectedValues SelectLargest(Tiles* tiles, size_t kept) {
  const size_t count = tiles->count();
  const float floor = EstimateFloor(*tiles, kept);
  Candidates candidates(count);
  for (size_t first = 0; first < count; first += kTile) {
    candidates.Note(tiles->Load(first), first, floor);
  }
  if (candidates.size() < kept) {  // The sample misled.
    candidates.Clear();
    for (size_t first = 0; first < count; first += kTile) {
      candidates.Note(tiles->Reload(first), first, 0);
    }
    CHECK_GE(candidates.size(), kept) << "a residual is not finite";
  }
  candidates.KeepLargest(kept);
  return candidates.chosen();
}

}  // namespace slackline
