#include "common/codec/topk_codec.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <sstream>

#include "common/byte_order.h"
#include "common/codec/block_kernels.h"
#include "common/codec/dense_kernels.h"
#include "common/half.h"

namespace slackline {
namespace {

constexpr size_t kTile = 1024;  // Stays in the first cache between loading and looking.
constexpr size_t kValueBytes = 2;

constexpr size_t kBins = 2048;
// The upper bits of a magnitude choose a bin, the next ones a bin within it.
constexpr uint32_t kCoarseShift = 20;
constexpr uint32_t kFineShift = kTopKIgnoredBits;
static_assert(1u << (kCoarseShift - kFineShift) == kBins);
static_assert(1u << (31 - kCoarseShift) == kBins);
constexpr uint32_t kInfinityBits = 0x7F800000;

constexpr size_t kSamples = 1024;
constexpr size_t kLeastSampled = 32 * kSamples;

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// The values to encode, a tile at a time and again for each pass over them. With a residual they
// are computed once and kept in next_residual, otherwise anew for each pass.
class Tiles {
 public:
  Tiles(const float* in, size_t count, float scale, const float* residual, float* next_residual)
      : in_(in), count_(count), scale_(scale), residual_(residual), next_(next_residual) {}

  size_t count() const { return count_; }
  const EncodeStats& stats() const { return stats_; }
  float largest() const { return largest_; }
  float* next_residual() const { return next_; }

  // kTile values from `first` on, zeros behind the last; valid until the next call.
  const float* Load(size_t first) { return LoadTile(first, &stats_); }
  // The same once all tiles have been loaded.
  const float* Reload(size_t first) {
    EncodeStats counted_before;
    if (next_ == nullptr) return LoadTile(first, &counted_before);
    if (first + kTile <= count_) return next_ + first;
    Pad(next_, first, tile_);
    return tile_;
  }

  // A lower bound for the kept-th largest magnitude, by a sample: 0 when a sample says too little.
  uint32_t EstimateFloor(size_t kept) const {
    const size_t rank = 2 * kept * kSamples / count_ + 16;
    if (count_ < kLeastSampled || rank >= kSamples / 2) return 0;
    std::array<uint32_t, kSamples> sample;
    const size_t stride = count_ / kSamples;
    for (size_t i = 0; i < kSamples; ++i) {
      const size_t at = i * stride;
      sample[i] = MagnitudeBits(in_[at] * scale_ + (residual_ == nullptr ? 0 : residual_[at]));
    }
    std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<>());
    return std::min(sample[rank], kInfinityBits - 1) >> kCoarseShift << kCoarseShift;
  }

 private:
  void Pad(const float* from, size_t first, float* to) const {
    std::fill(std::copy_n(from + first, count_ - first, to), to + kTile, 0.0f);
  }

  const float* LoadTile(size_t first, EncodeStats* stats) {
    const BlockKernels& kernels = GetBlockKernels();
    const float* kept = residual_ == nullptr ? nullptr : residual_ + first;
    if (first + kTile <= count_) {
      float* to = next_ == nullptr ? tile_ : next_ + first;
      largest_ = std::max(largest_, kernels.load(in_ + first, kept, kTile, scale_, to, stats));
      return to;
    }
    alignas(64) float padded[kTile];
    Pad(in_, first, padded);
    if (kept != nullptr) {
      Pad(residual_, first, tile_);
      kept = tile_;
    }
    largest_ = std::max(largest_, kernels.load(padded, kept, kTile, scale_, tile_, stats));
    if (next_ != nullptr) std::copy_n(tile_, count_ - first, next_ + first);
    return tile_;
  }

  const float* const in_;
  const size_t count_;
  const float scale_;
  const float* const residual_;
  float* const next_;
  EncodeStats stats_;
  float largest_ = 0;
  alignas(64) float tile_[kTile];
};

// What is sent: every magnitude above `bits` and the first `ties` of those equal to it, all with
// the ignored bits cut off.
struct Threshold {
  uint32_t bits = 0;
  size_t ties = 0;
};

// Calls visit(position) for the values of a tile whose magnitude's bits are in [low, high). All are
// marked before any is visited: at a few in a hundred, a branch at each vector is taken at random.
template <class Visit>
void ForEachBetween(const float* tile, uint32_t low, uint32_t high, const Visit& visit) {
  std::array<std::byte, kTile / 8> marks;
  GetBlockKernels().mark(tile, kTile, std::bit_cast<float>(low), std::bit_cast<float>(high),
                         marks.data());
  for (size_t i = 0; i < kTile; i += 64) {
    for (auto word = LoadLe<uint64_t>(&marks[i / 8]); word != 0; word &= word - 1) {
      visit(i + static_cast<size_t>(std::countr_zero(word)));
    }
  }
}

using Histogram = std::array<uint32_t, kBins>;

// For every magnitude of a tile whose bits m are in [low, high): ++bins[(m - low) >> shift].
void AddToHistogram(const float* tile, uint32_t low, uint32_t high, uint32_t shift,
                    Histogram* bins) {
  ForEachBetween(tile, low, high, [&](size_t position) {
    ++(*bins)[(MagnitudeBits(tile[position]) - low) >> shift];
  });
}

size_t SumOf(const Histogram& bins) { return std::accumulate(bins.begin(), bins.end(), size_t{0}); }

// The bin in which the rank-th largest value lies (rank >= 1 and at most the sum), and by how much
// the bins above it fall short of the rank.
struct Bin {
  size_t index = 0;
  size_t missing = 0;
};

Bin FindBin(const Histogram& bins, size_t rank) {
  Bin bin{.index = kBins - 1, .missing = rank};
  while (bins[bin.index] < bin.missing) bin.missing -= bins[bin.index--];
  return bin;
}

// The first pass over the values, and the second.
Threshold FindThreshold(Tiles* tiles, size_t kept) {
  const size_t count = tiles->count();
  Histogram bins{};
  uint32_t low = tiles->EstimateFloor(kept);
  for (size_t first = 0; first < count; first += kTile) {
    AddToHistogram(tiles->Load(first), low, kInfinityBits, kCoarseShift, &bins);
  }
  if (SumOf(bins) < kept) {  // The sample misled.
    low = 0;
    bins.fill(0);
    for (size_t first = 0; first < count; first += kTile) {
      AddToHistogram(tiles->Reload(first), low, kInfinityBits, kCoarseShift, &bins);
    }
    CHECK_GE(SumOf(bins), kept) << "a residual is not finite";
  }
  const Bin coarse = FindBin(bins, kept);
  low += static_cast<uint32_t>(coarse.index) << kCoarseShift;
  bins.fill(0);
  for (size_t first = 0; first < count; first += kTile) {
    AddToHistogram(tiles->Reload(first), low, low + (1u << kCoarseShift), kFineShift, &bins);
  }
  const Bin fine = FindBin(bins, coarse.missing);
  return {.bits = low + (static_cast<uint32_t>(fine.index) << kFineShift), .ties = fine.missing};
}

// The third pass: writes values and indices, and leaves in the residual what they lose.
void WriteSelected(Tiles* tiles, Threshold threshold, float scale, const IndexLayout& layout,
                   std::byte* values, std::byte* indices) {
  const float inverse = 1 / scale;
  const uint32_t tie_end = threshold.bits + (1u << kTopKIgnoredBits);
  IndexWriter writer(layout, indices);
  size_t written = 0;
  for (size_t first = 0; written < layout.kept; first += kTile) {
    const float* tile = tiles->Reload(first);
    ForEachBetween(tile, threshold.bits, kInfinityBits, [&](size_t position) {
      const float value = tile[position];
      if (MagnitudeBits(value) < tie_end) {
        if (threshold.ties == 0) return;
        --threshold.ties;
      }
      const size_t index = first + position;
      const uint16_t half = Fp16FromFloat(value * inverse);
      StoreLe<uint16_t>(values + kValueBytes * written, half);
      writer.Add(static_cast<uint32_t>(index));
      ++written;
      if (tiles->next_residual() != nullptr) {
        tiles->next_residual()[index] = value - FloatFromFp16(half) * scale;
      }
    });
  }
}

}  // namespace

float TopKScale(float largest) {
  const int exponent = std::ilogb(std::max(largest, kSmallestScaled));
  return std::ldexp(1.0f, exponent - 14);
}

size_t TopKCodec::Kept(size_t count) const {
  if (count == 0) return 0;
  const double kept = std::ceil(fraction_ * static_cast<double>(count));
  return std::clamp<size_t>(static_cast<size_t>(kept), 1, count);
}

PayloadHeader TopKCodec::Header(const IndexLayout& layout) {
  return {.codec = CodecId::kTopK,
          .shape = static_cast<uint8_t>(layout.low_bits),
          .count = static_cast<uint32_t>(layout.count),
          .kept = static_cast<uint32_t>(layout.kept)};
}

size_t TopKCodec::EncodedBytes(size_t count) const {
  const IndexLayout layout(count, Kept(count));
  return kPayloadHeaderBytes + kValueBytes * layout.kept + layout.bytes;
}

EncodeStats TopKCodec::Encode(const float* in, size_t count, float scale, std::byte* out) const {
  return EncodeResidual(in, count, scale, nullptr, nullptr, out);
}

EncodeStats TopKCodec::EncodeResidual(const float* in, size_t count, float scale,
                                      const float* residual, float* next_residual,
                                      std::byte* out) const {
  CHECK_LE(count, kMaxCodedValues);
  const IndexLayout layout(count, Kept(count));
  PayloadHeader header = Header(layout);
  header.scale = TopKScale(0);
  EncodeStats stats;
  if (count != 0) {
    Tiles tiles(in, count, scale, residual, next_residual);
    const Threshold threshold = FindThreshold(&tiles, layout.kept);
    header.scale = TopKScale(tiles.largest());
    std::byte* values = out + kPayloadHeaderBytes;
    WriteSelected(&tiles, threshold, header.scale, layout, values,
                  values + kValueBytes * layout.kept);
    stats = tiles.stats();
  }
  StorePayloadHeader(header, out);
  return stats;
}

Status TopKCodec::Validate(ConstBytes in, size_t count) const {
  std::ostringstream message;
  if (count > kMaxCodedValues) {
    message << "topk payload of " << count << " values, expected " << kMaxCodedValues << " at most";
    return InvalidArgument(message.str());
  }
  const IndexLayout layout(count, Kept(count));
  SLACKLINE_RETURN_IF_ERROR(CheckPayloadHeader(in, Header(layout), EncodedBytes(count), name()));
  const float scale = PayloadScale(in.data());
  // Not (in range), so that NaN is refused too.
  if (!(scale >= TopKScale(0) && scale <= TopKScale(kLargestCoded)) ||
      (std::bit_cast<uint32_t>(scale) & 0x7FFFFF) != 0) {
    message << "topk payload has scale " << scale << ", expected a power of two from "
            << TopKScale(0) << " to " << TopKScale(kLargestCoded);
    return InvalidArgument(message.str());
  }
  const std::byte* values = in.data() + kPayloadHeaderBytes;
  const size_t bad = Fp16Kernels().first_non_finite(values, layout.kept);
  if (bad != layout.kept) {
    message << "topk payload has a value that is not finite at position " << bad << " of "
            << layout.kept;
    return InvalidArgument(message.str());
  }
  size_t position = 0;
  if (!IndicesAreValid(layout, values + kValueBytes * layout.kept, &position)) {
    message << "topk payload has an index that is missing, not above the one before it or not "
            << "below " << count << ", or bits left over, at position " << position << " of "
            << layout.kept;
    return InvalidArgument(message.str());
  }
  return OkStatus();
}

void TopKCodec::Decode(const std::byte* in, size_t count, float scale, float* out) const {
  std::fill_n(out, count, 0.0f);
  DecodeAdd(in, count, scale, out);
}

void TopKCodec::DecodeAdd(const std::byte* in, size_t count, float scale, float* out) const {
  constexpr size_t kBatch = 64;
  const IndexLayout layout(count, Kept(count));
  const float factor = PayloadScale(in) * scale;
  const std::byte* value = in + kPayloadHeaderBytes;
  IndexReader reader(layout, value + kValueBytes * layout.kept);
  // Each index is a cache line of its own, so the lines of a batch are asked for ahead.
  std::array<uint32_t, kBatch> batch;
  size_t n = 0;
  do {
    for (n = 0; n < kBatch && reader.Next(&batch[n]); ++n) __builtin_prefetch(out + batch[n], 1);
    for (size_t i = 0; i < n; ++i, value += kValueBytes) {
      out[batch[i]] += FloatFromFp16(LoadLe<uint16_t>(value)) * factor;
    }
  } while (n == kBatch);
}

}  // namespace slackline
