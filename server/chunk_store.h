// The memory of one shard's chunks: FP32 master weights, optimizer state, the copies that replies
// are sent from, and what BSP rounds are summed in. Laid out and allocated once.
//
// A reply is sent from a chunk's *live copy* while later pushes go on changing the weights. So each
// chunk has two copies with pin counts (replies in flight): an update is written into a copy that
// nobody reads, and becomes the live one. With the fp32 pull codec the copies are the master
// weights themselves (an unpinned update is in place); with another dense one they are their
// encodings, written by the same pass that updates the master; with one that has a residual they
// are the published reference in FP32 (server/published.h).
//
// Threading: owner thread: the shard's. Ownership: memory comes from the endpoint, which must
// outlive the store. Errors: a map from the coordinator that contradicts itself is InvalidArgument.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/codec/chunk_codec.h"
#include "common/status.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "proto/reduce.h"
#include "server/published.h"
#include "server/reduction.h"
#include "server/shard_job.h"
#include "transport/transport.h"

namespace slackline::server {

inline constexpr size_t kChunkCopies = 2;
inline constexpr size_t kMaxOptimizerSlots = 2;
inline constexpr uint32_t kNoRequest = UINT32_MAX;  // "None", in lists of open requests.

// Neighbouring elements with one weight-decay setting: one optimizer call.
struct ChunkRun {
  size_t offset = 0;
  size_t count = 0;
  bool decay = false;
};

// A part of a tensor in the chunk, for messages.
struct ChunkSegment {
  uint32_t tensor = 0;
  uint64_t tensor_offset = 0;
  uint64_t chunk_offset = 0;
  uint64_t count = 0;
};

// A round of kReduce, and the requests that wait for it.
struct ChunkReduction {
  Reduction state;
  uint32_t pins = 0;              // Replies in flight from the aggregate.
  uint32_t waiting = kNoRequest;  // Head of a list in the request table.
};

struct Chunk {
  ChunkIndex index = 0;
  uint64_t flat_offset = 0;
  size_t count = 0;
  std::vector<ChunkRun> runs;
  std::vector<ChunkSegment> segments;
  ChunkCodec push_codec;
  ChunkCodec pull_codec;

  float* master = nullptr;  // The weights. fp32 pull codec: copies[live].
  std::array<std::byte*, kChunkCopies> copies{};
  std::array<uint32_t, kChunkCopies> pins{};  // Replies in flight from each copy.
  uint32_t live = 0;
  Published published;
  std::array<float*, kMaxOptimizerSlots> slots{};  // Null: the optimizer has no such state.

  bool initialised = false;
  uint64_t version = 0;  // Counts changes of the weights; 1 when initialised.
  uint64_t steps = 0;    // Optimizer steps taken (bias correction).

  // The open BSP round.
  float* sum = nullptr;     // In arrival order; not when deterministic.
  uint32_t sum_pushes = 0;  // Non-empty pushes in `sum`.

  std::array<ChunkReduction, proto::kReduceRounds> reductions;

  uint32_t waiting = kNoRequest;  // Open pulls: head of a list in the request table.
  bool cut_awaits_round = false;  // BSP: a checkpoint will cut it when its round closes.
  bool cut_pending = false;       // A checkpoint must copy the chunk before it changes.

  size_t CopyBytes() const {
    return published.in_use() ? count * sizeof(float) : pull_codec.EncodedBytes();
  }
  // The copy that the next update may write: an unpinned one, the live one if possible (it is in
  // the cache); nullopt while both are being sent.
  std::optional<uint32_t> WritableCopy() const {
    if (published.in_use() && published.pins[published.SlotOf(version + 1)] != 0) {
      return std::nullopt;
    }
    if (pins[live] == 0) return live;
    if (pins[1 - live] == 0) return 1 - live;
    return std::nullopt;
  }
};

class ChunkStore {
 public:
  // Lays out and allocates the chunks that `map` gives to `shard`; that may be none, when there are
  // fewer chunks than shards. ResourceExhausted: the memory is
  // not there (names the bytes).
  // `job` must outlive the store.
  static Result<std::unique_ptr<ChunkStore>> Create(transport::Endpoint& endpoint,
                                                    const control::ShardMap& map, ShardIndex shard,
                                                    const ShardJob& job, size_t slot_count);

  size_t size() const { return chunks_.size(); }
  Chunk& at(uint32_t local) { return chunks_[local]; }
  const Chunk& at(uint32_t local) const { return chunks_[local]; }
  std::vector<Chunk>& chunks() { return chunks_; }
  // The shard's number of a global chunk; nullopt if it is not here. Any value may be asked.
  std::optional<uint32_t> FindLocal(ChunkIndex index) const;
  size_t max_count() const { return max_count_; }            // Elements of the largest chunk.
  size_t max_push_bytes() const { return max_push_bytes_; }  // Of any chunk at any clock.
  // True when `map` gives this shard exactly these chunks.
  bool SameLayout(const control::ShardMap& map, ShardIndex shard) const;
  // "tensor 'h.0.w' at offset 17": where an element of the chunk lies in the model.
  std::string DescribeElement(const Chunk& chunk, size_t element) const;

  // Deterministic rounds: makes room for `leaves` pushes a chunk. May be called again with more.
  Status ReserveLeaves(transport::Endpoint& endpoint, size_t leaves);
  // The buffer of a chunk's leaf < the reserved number; leaves are in no order of their own.
  float* leaf(uint32_t local, size_t leaf);
  size_t leaf_capacity() const { return leaf_regions_.size(); }

 private:
  ChunkStore() = default;
  Status AddChunk(const control::Chunk& chunk, const control::ShardMap& map, const ShardJob& job);
  Status Allocate(transport::Endpoint& endpoint, const ShardJob& job, size_t slot_count);

  std::vector<Chunk> chunks_;
  std::vector<uint32_t> local_of_;  // By global index; kNotHere where another shard has it.
  std::vector<std::string> tensor_names_;
  std::vector<size_t> leaf_offset_;  // Of each chunk, in floats, in a leaf region.
  size_t leaf_floats_ = 0;
  size_t max_count_ = 0;
  size_t max_push_bytes_ = 0;
  std::unique_ptr<transport::Region> region_;
  std::vector<std::unique_ptr<transport::Region>> leaf_regions_;  // One a leaf, all chunks.
};

}  // namespace slackline::server
