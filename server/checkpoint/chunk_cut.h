// What a shard hands to whoever writes a checkpoint: copies of its chunks, one at a time.
//
// Threading: a sink is called on the shard's thread and must not block; what it hands on to another
// thread it synchronises itself. Ownership: buffers are the sink's.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace slackline::server {

// Every clock of this life up to `clock` is in the chunk.
struct ChunkWatermark {
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  Clock clock = kNoClock;
};

// One chunk at the cut. `data` holds (1 + slot_count) * count floats: the weights, then each slot.
struct ChunkCut {
  ChunkIndex chunk = 0;
  size_t count = 0;
  size_t slot_count = 0;
  uint64_t version = 0;
  uint64_t steps = 0;
  std::vector<ChunkWatermark> watermarks;
  float* data = nullptr;
};

class CheckpointSink {
 public:
  virtual ~CheckpointSink() = default;
  // Memory for one chunk of the shard, any of them; null: none is free now. Once one is, the owner
  // of the shard calls OnTick.
  virtual float* AcquireBuffer() = 0;
  // Takes a filled buffer.
  virtual void Submit(ChunkCut cut) = 0;
  // The last call: all chunks were submitted, or why not.
  virtual void Finish(const Status& status) = 0;
};

}  // namespace slackline::server
