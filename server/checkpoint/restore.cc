#include "server/checkpoint/restore.h"

#include <map>
#include <memory>
#include <vector>

#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"

namespace slackline::server {
namespace {

Status CheckTensors(const std::string& directory, const Manifest& manifest,
                    const control::ShardMap& map) {
  if (manifest.tensors.size() != static_cast<size_t>(map.tensors_size())) {
    return InvalidArgument("checkpoint " + directory + " is of another model: it has " +
                           std::to_string(manifest.tensors.size()) + " tensors, the job has " +
                           std::to_string(map.tensors_size()));
  }
  for (int i = 0; i < map.tensors_size(); ++i) {
    const control::TensorSpec& found = manifest.tensors[static_cast<size_t>(i)];
    const control::TensorSpec& wanted = map.tensors(i);
    const bool same_shape = std::equal(found.shape().begin(), found.shape().end(),
                                       wanted.shape().begin(), wanted.shape().end());
    if (found.name() != wanted.name() || !same_shape) {
      return InvalidArgument("checkpoint " + directory + " is of another model: tensor " +
                             std::to_string(i) + " is '" + found.name() + "', the job has '" +
                             wanted.name() + "'" +
                             (found.name() == wanted.name() ? " of another shape" : ""));
    }
  }
  return OkStatus();
}

Status CheckChunk(const std::string& directory, const Manifest& manifest,
                  const control::Chunk& chunk) {
  if (chunk.index() >= manifest.chunks.size() ||
      manifest.chunks[chunk.index()].flat_offset() != chunk.flat_offset() ||
      manifest.chunks[chunk.index()].count() != chunk.count()) {
    return InvalidArgument("checkpoint " + directory + ": chunk " + std::to_string(chunk.index()) +
                           " has other bounds than the job's; resume with its chunk_bytes, " +
                           std::to_string(manifest.job.chunk_bytes()));
  }
  return OkStatus();
}

// Without the reference of a lossy pull codec, which one run may have and the other not.
std::vector<std::string> OptimizerSlots(std::vector<std::string> names) {
  std::erase(names, kReferenceSlot);
  return names;
}

// All of one file's part in a shard.
using FilesInUse = std::map<uint32_t, std::unique_ptr<ShardFileReader>>;

Result<FilesInUse> OpenFiles(const std::string& directory, const Manifest& manifest,
                             const std::vector<const control::Chunk*>& wanted) {
  FilesInUse files;
  for (const control::Chunk* chunk : wanted) {
    const uint32_t file = manifest.chunks[chunk->index()].shard();
    if (files.contains(file)) continue;
    SLACKLINE_ASSIGN_OR_RETURN(ShardFileReader reader,
                               ShardFileReader::Open(directory + "/" + manifest.files[file].name));
    files[file] = std::make_unique<ShardFileReader>(std::move(reader));
  }
  return files;
}

}  // namespace

Status RestoreShard(const std::string& directory, const control::ShardMap& map,
                    ShardIndex shard_index, Shard* shard) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Manifest manifest, ReadManifest(directory));
  SLACKLINE_RETURN_IF_ERROR(CheckTensors(directory, manifest, map));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const std::vector<std::string> slot_names,
                                    SlotNames(map.job()));
  const std::vector<std::string>& saved = manifest.slot_names;
  if (OptimizerSlots(slot_names) != OptimizerSlots(saved)) {
    return InvalidArgument("checkpoint " + directory + " was written with optimizer '" +
                           manifest.job.optimizer().name() + "', whose state '" +
                           map.job().optimizer().name() + "' does not have");
  }
  std::vector<const control::Chunk*> wanted;
  size_t max_count = 0;
  for (const control::Chunk& chunk : map.chunks()) {
    if (chunk.shard() != shard_index) continue;
    SLACKLINE_RETURN_IF_ERROR(CheckChunk(directory, manifest, chunk));
    wanted.push_back(&chunk);
    max_count = std::max<size_t>(max_count, chunk.count());
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const FilesInUse files, OpenFiles(directory, manifest, wanted));
  std::vector<float> data((1 + saved.size()) * max_count);
  // First all chunks that are needed are read, whose own checksums name them, then whole files,
  // whose checksums also cover the headers.
  for (const bool apply : {false, true}) {
    for (const control::Chunk* chunk : wanted) {
      const ShardFileReader& file = *files.at(manifest.chunks[chunk->index()].shard());
      SLACKLINE_ASSIGN_OR_RETURN_STATUS(
          const ChunkState state,
          file.ReadChunk(chunk->index(), chunk->count(), saved, data.data()));
      if (!apply) continue;
      ChunkRestore restore{chunk->index(), state.version, state.steps, data.data(), {},
                           nullptr,        chunk->count()};
      for (size_t slot = 0; slot < saved.size(); ++slot) {
        const float* const values = data.data() + (1 + slot) * chunk->count();
        if (saved[slot] == kReferenceSlot) {
          restore.reference = values;
        } else {
          restore.slots.push_back(values);
        }
      }
      SLACKLINE_RETURN_IF_ERROR(shard->RestoreChunk(restore));
    }
    if (apply) break;
    for (const auto& [file, reader] : files) {
      SLACKLINE_RETURN_IF_ERROR(VerifyFile(directory, manifest.files[file]));
    }
  }
  return OkStatus();
}

}  // namespace slackline::server
