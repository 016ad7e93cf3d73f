// The manifest of a checkpoint, and where checkpoints lie.
//
//   ROOT/step-00000300/manifest.json                  what is in it, with sizes and checksums
//   ROOT/step-00000300/shard-00000-of-00002.safetensors  a file a shard
//   ROOT/.tmp-7/                                      one that is being written, or was not
//   finished
//
// A checkpoint exists from the moment its directory has its final name: everything in it was synced
// before. So a writer that is killed at any moment leaves the previous one as it was.
// Threading: values and functions without shared state. Errors: a manifest that cannot be right is
// DataLoss (damaged) or InvalidArgument (another version), with the path and the field.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::server {

inline constexpr uint32_t kManifestVersion = 1;
inline constexpr size_t kMaxManifestBytes = 256u << 20;

struct ManifestFile {
  std::string name;  // Inside the checkpoint's directory.
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3-64 of the whole file.
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::string run_id;
  control::JobSpec job;
  std::vector<control::TensorSpec> tensors;
  // By index; they tile the flat space. `shard` is the position in `files` of the chunk's file.
  std::vector<control::Chunk> chunks;
  Clock clock = kNoClock;           // BSP: the last clock in it. Otherwise: of the slowest worker.
  std::vector<ManifestFile> files;  // By shard.
  std::vector<std::string> slot_names;  // Optimizer state in the files, beside the weights.
  std::map<WorkerId, double> loss_scales;
  int64_t unix_time_s = 0;  // When it was written.
};

// Writes DIR/manifest.json and syncs it. Invalid manifests are refused as ReadManifest would.
Status WriteManifest(const std::string& directory, const Manifest& manifest);
// Reads and checks DIR/manifest.json. NotFound: there is none: not a checkpoint.
Result<Manifest> ReadManifest(const std::string& directory);
// Sizes and checksums of all files against the manifest. DataLoss names the file.
Status VerifyFiles(const std::string& directory, const Manifest& manifest);
// One of them.
Status VerifyFile(const std::string& directory, const ManifestFile& file);

// "shard-00003-of-00008.safetensors"
std::string ShardFileName(ShardIndex shard, uint32_t shard_count);
// "step-00000301" for clock 300: the step that training goes on with.
std::string CheckpointName(Clock clock);

// Gives a written checkpoint its final name, durably. `directory` (ROOT/.tmp-...) holds its files
// and its manifest. One that had this name before is replaced in one step.
Status PublishCheckpoint(const std::string& directory, const std::string& target);
// The complete checkpoint with the highest step: its directory. NotFound: there is none.
// Directories whose manifest cannot be read are passed over, with a warning.
Result<std::string> FindLatestCheckpoint(const std::string& root);
// Removes what unfinished checkpoints left (ROOT/.tmp-*). To be called before any is written.
Status RemoveLeftovers(const std::string& root);

}  // namespace slackline::server
