#include "common/codec/topk_codec.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "common/codec/selected_values.h"
#include "common/codec/tiles.h"
#include "common/codec/topk_selection.h"

namespace slackline {
namespace {

// Calls visit(first, n, indices) for `n` indices at a time: numbers first, first + 1, ... of the
// list.
template <class Visit>
void ForEachBatch(const IndexLayout& layout, const std::byte* in, const Visit& visit) {
  constexpr size_t kBatch = 64;
  IndexReader reader(layout, in);
  std::array<uint32_t, kBatch> batch;
  for (size_t first = 0; first < layout.kept; first += kBatch) {
    size_t n = 0;
    while (n < kBatch && reader.Next(&batch[n])) ++n;
    visit(first, n, batch);
  }
}

}  // namespace

IndexLayout TopKCodec::Layout(size_t count) const { return {count, KeptValues(fraction_, count)}; }

PayloadHeader TopKCodec::Header(const IndexLayout& layout) const {
  return {.codec = CodecId::kTopK,
          .shape = static_cast<uint8_t>(layout.low_bits),
          .values = values_,
          .count = static_cast<uint32_t>(layout.count),
          .kept = static_cast<uint32_t>(layout.kept)};
}

size_t TopKCodec::IndicesOffset(const IndexLayout& layout) const {
  return kPayloadHeaderBytes + ValueBytes(values_) * layout.kept;
}

size_t TopKCodec::EncodedBytes(size_t count) const {
  const IndexLayout layout = Layout(count);
  return IndicesOffset(layout) + layout.bytes;
}

EncodeStats TopKCodec::EncodeResidual(const float* in, size_t count, float scale,
                                      const float* residual, float* next_residual,
                                      const EncodeIdentity& /*identity*/, std::byte* out) const {
  CHECK_LE(count, kMaxCodedValues);
  const IndexLayout layout = Layout(count);
  PayloadHeader header = Header(layout);
  header.scale = SelectedScale(values_, 0);
  EncodeStats stats;
  if (count != 0) {
    Tiles tiles(in, count, scale, residual, next_residual);
    const SelectedValues chosen = SelectLargest(&tiles, layout.kept);
    stats = tiles.stats();
    EncodeSelected(values_, layout.kept, chosen.values, &header.scale, out + kPayloadHeaderBytes);
    IndexWriter writer(layout, out + IndicesOffset(layout));
    for (size_t i = 0; i < layout.kept; ++i) writer.Add(chosen.indices[i]);
    for (size_t i = 0; next_residual != nullptr && i < layout.kept; ++i) {
      next_residual[chosen.indices[i]] = chosen.values[i];
    }
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
  const IndexLayout layout = Layout(count);
  SLACKLINE_RETURN_IF_ERROR(CheckPayloadHeader(in, Header(layout), EncodedBytes(count), name()));
  SLACKLINE_RETURN_IF_ERROR(CheckSelected(values_, PayloadScale(in.data()),
                                          in.data() + kPayloadHeaderBytes, layout.kept, name()));
  size_t position = 0;
  if (!IndicesAreValid(layout, in.data() + IndicesOffset(layout), &position)) {
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
  const IndexLayout layout = Layout(count);
  const float factor = PayloadScale(in) * scale;
  ForEachBatch(layout, in + IndicesOffset(layout), [&](size_t first, size_t n, const auto& batch) {
    // Each index is a cache line of its own, so the lines of a batch are asked for ahead.
    for (size_t i = 0; i < n; ++i) __builtin_prefetch(out + batch[i], 1);
    std::array<float, std::tuple_size_v<std::decay_t<decltype(batch)>>> values;
    DecodeSelected(values_, in + kPayloadHeaderBytes, first, n, factor, values.data());
    for (size_t i = 0; i < n; ++i) out[batch[i]] += values[i];
  });
}

void TopKCodec::ClearSent(const std::byte* payload, size_t count, float* values) const {
  const IndexLayout layout = Layout(count);
  ForEachBatch(layout, payload + IndicesOffset(layout),
               [&](size_t /*first*/, size_t n, const auto& batch) {
                 for (size_t i = 0; i < n; ++i) values[batch[i]] = 0;
               });
}

}  // namespace slackline
