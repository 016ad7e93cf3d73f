#include "server/checkpoint/merge.h"

#include <unistd.h>

#include <memory>
#include <vector>

#include "common/file.h"
#include "common/safetensors.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"

namespace slackline::server {
namespace {

std::vector<TensorDeclaration> Declarations(const Manifest& manifest) {
  std::vector<TensorDeclaration> out;
  for (const control::TensorSpec& tensor : manifest.tensors) {
    TensorDeclaration declaration{tensor.name(), TensorDtype::kF32, {}};
    for (int64_t extent : tensor.shape()) {
      declaration.shape.push_back(static_cast<uint64_t>(extent));
    }
    out.push_back(std::move(declaration));
  }
  return out;
}

// Chunks tile the flat space, and so do tensors, in the order of their declaration: the weights of
// the chunks, one after the other, are the data of the file.
Status Stream(const std::string& directory, const Manifest& manifest, SafetensorsWriter* writer) {
  std::vector<std::unique_ptr<ShardFileReader>> readers(manifest.files.size());
  std::vector<float> data;
  for (const control::Chunk& chunk : manifest.chunks) {
    std::unique_ptr<ShardFileReader>& reader = readers[chunk.shard()];
    if (reader == nullptr) {
      SLACKLINE_ASSIGN_OR_RETURN_STATUS(
          ShardFileReader opened,
          ShardFileReader::Open(directory + "/" + manifest.files[chunk.shard()].name));
      reader = std::make_unique<ShardFileReader>(std::move(opened));
    }
    data.resize((1 + manifest.slot_names.size()) * chunk.count());
    const Result<ChunkState> state =
        reader->ReadChunk(chunk.index(), chunk.count(), manifest.slot_names, data.data());
    if (!state) return state.error();
    SLACKLINE_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(data.data(), chunk.count()))));
  }
  return OkStatus();
}

}  // namespace

Status MergeCheckpoint(const std::string& directory, const std::string& output) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Manifest manifest, ReadManifest(directory));
  SLACKLINE_RETURN_IF_ERROR(VerifyFiles(directory, manifest));
  const SafetensorsMetadata metadata = {{"format", "pt"},
                                        {"model", manifest.job.model()},
                                        {"model_config", manifest.job.model_config_json()},
                                        {"clock", std::to_string(manifest.clock)},
                                        {"run_id", manifest.run_id}};
  const std::string temporary = output + ".tmp";
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(temporary, Declarations(manifest), metadata));
  Status status = Stream(directory, manifest, &writer);
  if (status.ok()) {
    const Result<FileDigest> digest = writer.Finish();
    status = digest ? RenameDurably(temporary, output) : digest.error();
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace slackline::server
