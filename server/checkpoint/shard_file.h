// One shard's file of a checkpoint: safetensors, with "chunk.<k>.weights" and "chunk.<k>.<slot>"
// for each chunk k, all F32 [count], and for each chunk in __metadata__ a JSON string
// "chunk.<k>": {"version", "steps", "xxh3" of its data, "watermarks": [[worker, incarnation,
// clock]]}.
//
// Chunks are cut in the order in which their rounds close, and what the metadata says of a chunk is
// known only then. So the file is laid out in advance, chunks are written where they belong in any
// order, and the header comes last, into room that was kept for it (the format allows spaces).
// Threading: an object belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/safetensors.h"
#include "common/status.h"
#include "server/checkpoint/chunk_cut.h"

namespace slackline::server {

struct ShardFileLayout {
  struct ChunkShape {
    ChunkIndex index = 0;
    size_t count = 0;
  };
  std::vector<ChunkShape> chunks;
  std::vector<std::string> slot_names;
  size_t max_watermarks = 0;  // A chunk has at most so many.
};

class ShardFileWriter {
 public:
  // Creates the file and reserves its space. ResourceExhausted: the disk is full.
  static Result<ShardFileWriter> Create(const std::string& path, const ShardFileLayout& layout);

  // Each chunk of the layout once, in any order.
  Status WriteChunk(const ChunkCut& cut);
  // The header; then everything is synced. FailedPrecondition: a chunk is missing. Call once.
  Result<FileDigest> Finish();
  const std::string& path() const { return path_; }

 private:
  ShardFileWriter(std::string path, Fd fd, const ShardFileLayout& layout);
  // The header with this metadata, padded with spaces to `bytes` (0: not padded).
  std::string Header(const SafetensorsMetadata& metadata, size_t bytes) const;
  Status WriteAt(uint64_t offset, ConstBytes bytes);

  std::string path_;
  Fd fd_;
  ShardFileLayout layout_;
  uint64_t header_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  std::map<ChunkIndex, uint64_t> offset_of_;  // Of a chunk's data, from the start of all data.
  SafetensorsMetadata metadata_;
};

// What the metadata says of a chunk.
struct ChunkState {
  uint64_t version = 0;
  uint64_t steps = 0;
  uint64_t xxh3 = 0;
  std::vector<ChunkWatermark> watermarks;
};

class ShardFileReader {
 public:
  static Result<ShardFileReader> Open(const std::string& path);
  // Copies a chunk: weights, then the slots in this order, `count` floats each. NotFound,
  // InvalidArgument (another shape) and DataLoss (its checksum) name file and chunk.
  Result<ChunkState> ReadChunk(ChunkIndex chunk, size_t count,
                               const std::vector<std::string>& slot_names, float* out) const;

 private:
  explicit ShardFileReader(SafetensorsReader reader) : reader_(std::move(reader)) {}
  SafetensorsReader reader_;
};

}  // namespace slackline::server
