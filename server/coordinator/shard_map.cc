#include "server/coordinator/shard_map.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

// Appends pieces to chunks in order.
class ChunkFiller {
 public:
  explicit ChunkFiller(uint64_t capacity) : capacity_(capacity) {}

  // False: the bound on chunks is met.
  bool Append(uint32_t tensor, uint64_t tensor_offset, uint64_t count) {
    if (chunks_.empty() || chunks_.back().count() + count > capacity_) {
      if (chunks_.size() == kMaxChunks) return false;
      control::Chunk& chunk = chunks_.emplace_back();
      chunk.set_index(static_cast<uint32_t>(chunks_.size() - 1));
      chunk.set_flat_offset(flat_offset_);
    }
    control::Chunk& chunk = chunks_.back();
    control::Segment* last =
        chunk.segments_size() == 0 ? nullptr : chunk.mutable_segments(chunk.segments_size() - 1);
    if (last != nullptr && last->tensor() == tensor) {
      last->set_count(last->count() + count);
    } else {
      control::Segment* segment = chunk.add_segments();
      segment->set_tensor(tensor);
      segment->set_tensor_offset(tensor_offset);
      segment->set_chunk_offset(chunk.count());
      segment->set_count(count);
    }
    chunk.set_count(chunk.count() + count);
    flat_offset_ += count;
    return true;
  }

  std::vector<control::Chunk> Take() { return std::move(chunks_); }

 private:
  const uint64_t capacity_;
  uint64_t flat_offset_ = 0;
  std::vector<control::Chunk> chunks_;
};

uint64_t DivideUp(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

// Appends [begin, begin + units * unit) in `pieces` runs of whole units, as even as they can be.
bool AppendEven(uint32_t tensor, uint64_t begin, uint64_t units, uint64_t unit, uint64_t pieces,
                ChunkFiller* filler) {
  uint64_t done = 0;
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const uint64_t share = (units - done) / (pieces - piece);
    if (!filler->Append(tensor, begin + done * unit, share * unit)) return false;
    done += share;
  }
  return true;
}

bool AppendTensor(uint32_t index, const control::TensorSpec& tensor, uint64_t capacity,
                  ChunkFiller* filler) {
  const uint64_t count = ElementCount(tensor);
  if (count <= capacity) return filler->Append(index, 0, count);
  const auto rows = static_cast<uint64_t>(tensor.shape(0));  // More than one element: has a shape.
  const uint64_t row = count / rows;
  if (row <= capacity) {
    return AppendEven(index, 0, rows, row, DivideUp(rows, capacity / row), filler);
  }
  const uint64_t pieces = DivideUp(row, capacity);
  for (uint64_t r = 0; r < rows; ++r) {
    if (!AppendEven(index, r * row, row, 1, pieces, filler)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<control::Chunk>> CutIntoChunks(const Tensors& tensors, uint32_t chunk_bytes) {
  const uint64_t capacity = chunk_bytes / sizeof(float);
  ChunkFiller filler(capacity);
  for (int i = 0; i < tensors.size(); ++i) {
    if (AppendTensor(static_cast<uint32_t>(i), tensors[i], capacity, &filler)) continue;
    uint64_t total = 0;
    for (const auto& tensor : tensors) total += ElementCount(tensor);
    return Err(InvalidArgument(Text(
        "--chunk_bytes=", chunk_bytes, " cuts the model's ", total, " elements into more than ",
        kMaxChunks, " chunks: choose at least ", DivideUp(2 * total * sizeof(float), kMaxChunks))));
  }
  return filler.Take();
}

Result<std::vector<control::Chunk>> CutForShards(const Tensors& tensors, uint32_t chunk_bytes,
                                                 uint32_t shard_count) {
  for (uint32_t bytes = chunk_bytes; bytes >= sizeof(float); bytes /= 2) {
    auto chunks = CutIntoChunks(tensors, bytes);
    if (!chunks || chunks->size() >= shard_count) return chunks;
  }
  return Err(InvalidArgument(Text("the model has fewer elements than there are shards (",
                                  shard_count, "): use fewer servers or shards")));
}

Status CheckLayout(const Tensors& tensors, const std::vector<control::Chunk>& chunks) {
  uint64_t flat = 0, in_tensor = 0;
  uint32_t tensor = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const control::Chunk& chunk = chunks[i];
    bool good = chunk.index() == i && chunk.flat_offset() == flat;
    uint64_t in_chunk = 0;
    for (const control::Segment& segment : chunk.segments()) {
      good = good && segment.count() > 0 && segment.tensor() == tensor &&
             segment.tensor_offset() == in_tensor && segment.chunk_offset() == in_chunk &&
             static_cast<int>(tensor) < tensors.size();
      if (!good) break;
      const uint64_t size = ElementCount(tensors[static_cast<int>(tensor)]);
      good = segment.count() <= size - in_tensor;
      in_chunk += segment.count();
      in_tensor += segment.count();
      if (in_tensor != size) continue;
      in_tensor = 0;
      ++tensor;
    }
    if (!good || in_chunk == 0 || in_chunk != chunk.count() || i >= kMaxChunks) {
      return DataLoss(Text("the layout of chunk ", i, " does not fit the model's tensors"));
    }
    flat += in_chunk;
  }
  if (static_cast<int>(tensor) == tensors.size()) return OkStatus();
  return DataLoss(Text("the chunks end before tensor ", tensor, " of ", tensors.size()));
}

void AssignToShards(uint32_t shard_count, std::vector<control::Chunk>* chunks) {
  std::vector<size_t> order(chunks->size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return (*chunks)[a].count() > (*chunks)[b].count(); });
  using Load = std::pair<uint64_t, uint32_t>;  // Elements, shard: the smallest comes first.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (uint32_t shard = 0; shard < shard_count; ++shard) loads.emplace(0, shard);
  for (const size_t index : order) {
    const auto [elements, shard] = loads.top();
    loads.pop();
    (*chunks)[index].set_shard(shard);
    loads.emplace(elements + (*chunks)[index].count(), shard);
  }
}

}  // namespace slackline::server::coordinator
