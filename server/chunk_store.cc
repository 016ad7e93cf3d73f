#include "server/chunk_store.h"

#include <algorithm>
#include <cstring>

#include "proto/job_codecs.h"

namespace slackline::server {
namespace {

inline constexpr uint32_t kNotHere = UINT32_MAX;
// Every buffer starts on a cache line, so that no two buffers share one and SIMD loads do not
// straddle lines.
inline constexpr size_t kAlignBytes = 64;

size_t Align(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

// As many deltas as the reference outweighs, and one.
void LayOutDeltas(Chunk* chunk) {
  Published& published = chunk->published;
  published.delta_bytes = chunk->pull_codec.EncodedBytes();
  const size_t fit = chunk->count * sizeof(float) / published.delta_bytes;
  published.slots = static_cast<uint32_t>(std::clamp<size_t>(fit, 1, kMaxKeptDeltas)) + 1;
}

size_t DeltaBytes(const Chunk& chunk) {
  return 2 * chunk.published.slots * chunk.published.delta_bytes;
}

std::string ChunkName(const control::Chunk& chunk) {
  return "shard map: chunk " + std::to_string(chunk.index());
}

// The segments must tile the chunk in order, or weight decay would miss or double elements.
Status CheckSegments(const control::Chunk& chunk, const control::ShardMap& map) {
  uint64_t next = 0;
  for (const control::Segment& segment : chunk.segments()) {
    if (segment.tensor() >= static_cast<uint32_t>(map.tensors_size())) {
      return InvalidArgument(ChunkName(chunk) + " names tensor " +
                             std::to_string(segment.tensor()) + " of " +
                             std::to_string(map.tensors_size()));
    }
    if (segment.chunk_offset() != next || segment.count() == 0 ||
        segment.count() > chunk.count() - next) {
      return InvalidArgument(ChunkName(chunk) + ": its segments do not tile it");
    }
    next += segment.count();
  }
  if (next != chunk.count()) {
    return InvalidArgument(ChunkName(chunk) + ": segments hold " + std::to_string(next) + " of " +
                           std::to_string(chunk.count()) + " elements");
  }
  return OkStatus();
}

void AppendRun(std::vector<ChunkRun>* runs, size_t offset, size_t count, bool decay) {
  if (!runs->empty() && runs->back().decay == decay) {
    runs->back().count += count;
  } else {
    runs->push_back({offset, count, decay});
  }
}

}  // namespace

Result<std::unique_ptr<ChunkStore>> ChunkStore::Create(transport::Endpoint& endpoint,
                                                       const control::ShardMap& map,
                                                       ShardIndex shard, const ShardJob& job,
                                                       size_t slot_count) {
  std::unique_ptr<ChunkStore> store(new ChunkStore());
  for (const control::TensorSpec& tensor : map.tensors()) {
    store->tensor_names_.push_back(tensor.name());
  }
  store->local_of_.assign(static_cast<size_t>(map.chunks_size()), kNotHere);
  for (const control::Chunk& chunk : map.chunks()) {
    if (chunk.shard() != shard) continue;
    SLACKLINE_RETURN_ERR_IF_ERROR(store->AddChunk(chunk, map, job));
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(store->Allocate(endpoint, job, slot_count));
  return store;
}

Status ChunkStore::AddChunk(const control::Chunk& in, const control::ShardMap& map,
                            const ShardJob& job) {
  if (in.index() >= local_of_.size() || local_of_[in.index()] != kNotHere) {
    return InvalidArgument(ChunkName(in) + " is out of range or doubled");
  }
  if (in.count() == 0 || in.count() > proto::kMaxPayloadBytes / sizeof(float)) {
    return InvalidArgument(ChunkName(in) + " has " + std::to_string(in.count()) +
                           " elements; expected 1 to " +
                           std::to_string(proto::kMaxPayloadBytes / sizeof(float)));
  }
  SLACKLINE_RETURN_IF_ERROR(CheckSegments(in, map));
  const bool split_by_decay = job.optimizer.weight_decay != 0;
  Chunk chunk;
  chunk.index = in.index();
  chunk.flat_offset = in.flat_offset();
  chunk.count = in.count();
  for (const control::Segment& segment : in.segments()) {
    chunk.segments.push_back(
        {segment.tensor(), segment.tensor_offset(), segment.chunk_offset(), segment.count()});
    const bool decay = map.tensors(static_cast<int>(segment.tensor())).decay();
    AppendRun(&chunk.runs, segment.chunk_offset(), segment.count(), split_by_decay && decay);
  }
  chunk.push_codec = proto::MakeChunkCodec(job.push_plan, in, map);
  chunk.pull_codec = proto::MakeChunkCodec(job.pull_plan, in, map);
  max_push_bytes_ = std::max(max_push_bytes_, chunk.push_codec.MaxEncodedBytes());
  local_of_[in.index()] = static_cast<uint32_t>(chunks_.size());
  max_count_ = std::max(max_count_, chunk.count);
  chunks_.push_back(std::move(chunk));
  return OkStatus();
}

Status ChunkStore::Allocate(transport::Endpoint& endpoint, const ShardJob& job, size_t slot_count) {
  const Codec* const dense_pull = job.pull_plan.dense();
  const bool fp32_pull = dense_pull != nullptr && dense_pull->id() == CodecId::kFp32;
  const bool needs_sum = job.mode == ConsistencyMode::kBsp && !job.deterministic;
  size_t total = 0;
  for (Chunk& chunk : chunks_) {
    if (dense_pull == nullptr) LayOutDeltas(&chunk);
    const size_t floats = Align(chunk.count * sizeof(float));
    total += floats * (slot_count + (needs_sum ? 1 : 0) + (fp32_pull ? 0 : 1));
    total += kChunkCopies * Align(chunk.CopyBytes()) + Align(DeltaBytes(chunk));
    leaf_offset_.push_back(leaf_floats_);
    leaf_floats_ += floats / sizeof(float);
  }
  if (total == 0) return OkStatus();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(region_, endpoint.Allocate(total));
  std::byte* next = region_->bytes().data();
  // Touched here, so that the first step of training does not pay for page faults.
  std::memset(next, 0, total);
  auto take = [&next](size_t bytes) {
    std::byte* taken = next;
    next += Align(bytes);
    return taken;
  };
  for (Chunk& chunk : chunks_) {
    const size_t floats = chunk.count * sizeof(float);
    for (std::byte*& copy : chunk.copies) copy = take(chunk.CopyBytes());
    chunk.master = reinterpret_cast<float*>(fp32_pull ? chunk.copies[chunk.live] : take(floats));
    for (size_t slot = 0; slot < slot_count; ++slot) {
      chunk.slots[slot] = reinterpret_cast<float*>(take(floats));
    }
    if (needs_sum) chunk.sum = reinterpret_cast<float*>(take(floats));
    chunk.published.deltas = take(DeltaBytes(chunk));
  }
  return OkStatus();
}

std::optional<uint32_t> ChunkStore::FindLocal(ChunkIndex index) const {
  if (index >= local_of_.size() || local_of_[index] == kNotHere) return std::nullopt;
  return local_of_[index];
}

bool ChunkStore::SameLayout(const control::ShardMap& map, ShardIndex shard) const {
  size_t found = 0;
  for (const control::Chunk& chunk : map.chunks()) {
    if (chunk.shard() != shard) continue;
    const std::optional<uint32_t> local = FindLocal(chunk.index());
    if (!local || chunks_[*local].count != chunk.count() ||
        chunks_[*local].flat_offset != chunk.flat_offset()) {
      return false;
    }
    ++found;
  }
  return found == chunks_.size();
}

std::string ChunkStore::DescribeElement(const Chunk& chunk, size_t element) const {
  for (const ChunkSegment& segment : chunk.segments) {
    if (element >= segment.chunk_offset && element - segment.chunk_offset < segment.count) {
      return "tensor '" + tensor_names_[segment.tensor] + "' at offset " +
             std::to_string(segment.tensor_offset + element - segment.chunk_offset);
    }
  }
  return "element " + std::to_string(element);
}

Status ChunkStore::ReserveLeaves(transport::Endpoint& endpoint, size_t leaves) {
  if (chunks_.empty()) return OkStatus();
  while (leaf_regions_.size() < leaves) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(std::unique_ptr<transport::Region> region,
                                      endpoint.Allocate(leaf_floats_ * sizeof(float)));
    std::memset(region->bytes().data(), 0, region->bytes().size());
    leaf_regions_.push_back(std::move(region));
  }
  return OkStatus();
}

float* ChunkStore::leaf(uint32_t local, size_t leaf) {
  return reinterpret_cast<float*>(leaf_regions_[leaf]->bytes().data()) + leaf_offset_[local];
}

}  // namespace slackline::server
