#include "server/coordinator/checkpoint_manifest.h"

#include <filesystem>
#include <map>
#include <system_error>

#include "server/coordinator/shard_map.h"
#include "server/coordinator/text.h"
#include "server/shard_job.h"

namespace slackline::server::coordinator {

Result<Manifest> BuildManifest(const CheckpointPlan& plan, const CoordinatorState& state,
                               int64_t unix_time_s) {
  const control::ShardMap& map = state.shard_map();
  Manifest manifest;
  manifest.run_id = state.run_id();
  manifest.job = map.job();
  manifest.tensors.assign(map.tensors().begin(), map.tensors().end());
  manifest.clock = plan.clock;
  manifest.unix_time_s = unix_time_s;
  SLACKLINE_ASSIGN_OR_RETURN(manifest.slot_names, SlotNames(map.job()));
  std::map<ShardIndex, uint32_t> position;
  for (const CheckpointFile& file : plan.files) {
    position[file.shard] = static_cast<uint32_t>(manifest.files.size());
    // Checked to be 16 hexadecimal digits when the report came.
    manifest.files.push_back({file.name, file.bytes, std::stoull(file.xxh3, nullptr, 16)});
  }
  manifest.chunks.assign(map.chunks().begin(), map.chunks().end());
  for (control::Chunk& chunk : manifest.chunks) chunk.set_shard(position.at(chunk.shard()));
  for (const auto& [rank, worker] : state.membership().workers()) {
    if (worker.loss_scale > 0) manifest.loss_scales[rank] = worker.loss_scale;
  }
  return manifest;
}

Status CommitPlan(const CheckpointPlan& plan, const CoordinatorState& state, int64_t unix_time_s) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Manifest manifest,
                                    BuildManifest(plan, state, unix_time_s));
  SLACKLINE_RETURN_IF_ERROR(WriteManifest(plan.directory, manifest));
  return PublishCheckpoint(plan.directory, plan.target);
}

Result<RestorePoint> LoadRestorePoint(const std::string& directory) {
  SLACKLINE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(directory));
  for (const ManifestFile& file : manifest.files) {
    const std::string path = directory + "/" + file.name;
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(path, error);
    if (error) return Err(DataLoss(Text("the checkpoint's file ", path, ": ", error.message())));
    if (bytes != file.bytes) {
      return Err(DataLoss(Text("the checkpoint's file ", path, " has ", bytes,
                               " bytes, its manifest says ", file.bytes)));
    }
  }
  RestorePoint restore;
  // Servers open it from a working directory of their own.
  std::error_code error;
  restore.directory = std::filesystem::absolute(directory, error).lexically_normal().string();
  restore.clock = manifest.clock;
  restore.job = std::move(manifest.job);
  restore.tensors.Assign(manifest.tensors.begin(), manifest.tensors.end());
  restore.chunks = std::move(manifest.chunks);
  const Status tensors = CheckTensors(restore.tensors);
  if (!tensors.ok()) return Err(DataLoss(directory + "/manifest.json: " + tensors.message()));
  const Status layout = CheckLayout(restore.tensors, restore.chunks);
  if (!layout.ok()) return Err(DataLoss(directory + "/manifest.json: " + layout.message()));
  return restore;
}

}  // namespace slackline::server::coordinator
