// One split of a data directory, mapped into memory read-only and verified: its shards end to end
// as one run of bytes.
//
// Threading: immutable after Open; any thread may read.
// Ownership: the mapping lives as long as the object; a file that is changed under a running worker
// is the user's mistake (data directories are written once, by rename).
// Errors: NotFound names the missing file; DataLoss names a file whose size or CRC-32 differs from
// the manifest's, with both values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/status.h"
#include "worker/data/manifest.h"

namespace slackline::worker {

class Dataset {
 public:
  // Maps and verifies every shard of `split`. NotFound: the manifest has no such split.
  static Result<Dataset> Open(const std::string& directory, const DataManifest& manifest,
                              const std::string& split);

  const DataShape& shape() const { return shape_; }
  uint64_t size_bytes() const { return shard_ends_.empty() ? 0 : shard_ends_.back(); }
  uint64_t records() const { return size_bytes() / shape_.record_bytes; }
  // Copies out.size() bytes from `offset`; the range must lie inside size_bytes(). It may span
  // shards.
  void Copy(uint64_t offset, std::span<uint8_t> out) const;

 private:
  DataShape shape_;
  std::vector<MappedFile> shards_;
  std::vector<uint64_t> shard_ends_;  // Bytes up to the end of each shard.
};

}  // namespace slackline::worker
