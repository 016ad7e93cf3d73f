#include "worker/trainer/trained_model.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>

#include "common/file.h"
#include "common/hash.h"
#include "common/safetensors.h"

namespace slackline::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxManifestBytes = 256u << 20;
// The keys that slackline-merge writes into the file's metadata.
constexpr const char* kModelConfigKey = "model_config";

Result<TrainedModel> NewModel(const std::string& config_json, const std::string& source) {
  auto config = ParseModelConfig(config_json);
  if (!config) return Err(InvalidArgument(source + ": " + config.error().message()));
  TrainedModel model;
  model.config = std::move(*config);
  model.source = source;
  size_t count = 0;
  for (const ParameterInfo& parameter : ModelParameters(model.config)) {
    count += static_cast<size_t>(parameter.count());
  }
  model.weights.resize(count);
  return model;
}

Result<TrainedModel> ReadMergedFile(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::Open(path));
  const auto config = file.metadata().find(kModelConfigKey);
  if (config == file.metadata().end()) {
    return Err(InvalidArgument(path + ": its metadata has no '" + kModelConfigKey +
                               "': expected a file made by slackline-merge"));
  }
  SLACKLINE_ASSIGN_OR_RETURN(TrainedModel model, NewModel(config->second, path));
  std::span<float> rest = model.weights;
  for (const ParameterInfo& parameter : ModelParameters(model.config)) {
    const auto count = static_cast<size_t>(parameter.count());
    SLACKLINE_RETURN_ERR_IF_ERROR(file.CopyFloats(parameter.name, rest.first(count)));
    rest = rest.subspan(count);
  }
  return model;
}

Status CheckTensors(const json& tensors, const ModelConfig& config, const std::string& where) {
  const std::vector<ParameterInfo> expected = ModelParameters(config);
  bool same = tensors.size() == expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) {
    same = tensors[i].at("name") == expected[i].name && tensors[i].at("shape") == expected[i].shape;
  }
  if (same) return OkStatus();
  return InvalidArgument(
      where + ": a checkpoint of another model: its tensors are not those of a " +
      std::string(ModelKindName(config.kind)) + " of the configuration that it names");
}

// Opens a shard's file after comparing it with its size and checksum in the manifest.
Result<SafetensorsReader> OpenShard(const std::string& directory, const json& entry) {
  const auto name = entry.at("name").get<std::string>();
  if (name.empty() || name.find('/') != std::string::npos) {
    return Err(DataLoss(directory + ": the manifest names a file outside of it: " + name));
  }
  const std::string path = directory + "/" + name;
  SLACKLINE_ASSIGN_OR_RETURN(const FileDigest found, HashFile(path));
  const auto bytes = entry.at("bytes").get<uint64_t>();
  const auto hash = HashFromHex(entry.at("xxh3").get<std::string>());
  if (found.bytes != bytes || !hash || found.xxh3 != *hash) {
    return Err(DataLoss("damaged checkpoint file " + path + ": expected " + std::to_string(bytes) +
                        " bytes with XXH3 " + entry.at("xxh3").get<std::string>() + ", found " +
                        std::to_string(found.bytes) + " with " + HashToHex(found.xxh3)));
  }
  return SafetensorsReader::Open(path);
}

// May throw json::exception for a field that is missing or of another type.
Result<TrainedModel> ReadFromManifest(const std::string& directory, const json& manifest) {
  SLACKLINE_ASSIGN_OR_RETURN(
      TrainedModel model,
      NewModel(manifest.at("job").at("model_config_json").get<std::string>(), directory));
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckTensors(manifest.at("tensors"), model.config, directory));
  std::vector<SafetensorsReader> files;
  for (const json& entry : manifest.at("files")) {
    SLACKLINE_ASSIGN_OR_RETURN(SafetensorsReader file, OpenShard(directory, entry));
    files.push_back(std::move(file));
  }
  uint64_t covered = 0;
  for (const json& chunk : manifest.at("chunks")) {
    const auto offset = chunk.at("flat_offset").get<uint64_t>();
    const auto count = chunk.at("count").get<uint64_t>();
    const auto file = chunk.at("file").get<uint64_t>();
    if (offset != covered || count > model.weights.size() - covered || file >= files.size()) {
      return Err(DataLoss(directory + ": the manifest's chunks do not tile the model"));
    }
    const std::string name =
        "chunk." + std::to_string(chunk.at("index").get<uint64_t>()) + ".weights";
    SLACKLINE_RETURN_ERR_IF_ERROR(
        files[file].CopyFloats(name, std::span(model.weights).subspan(offset, count)));
    covered += count;
  }
  if (covered != model.weights.size()) {
    return Err(DataLoss(directory + ": the manifest's chunks do not cover the model"));
  }
  return model;
}

Result<TrainedModel> ReadCheckpointDirectory(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  SLACKLINE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxManifestBytes));
  try {
    return ReadFromManifest(directory, json::parse(text));
  } catch (const json::exception& error) {
    return Err(DataLoss(path + ": not the manifest of a checkpoint: " + error.what()));
  }
}

// The complete checkpoint with the highest step in `root`: one exists from the moment its directory
// has its final name.
std::optional<std::string> LatestIn(const std::string& root) {
  std::optional<std::string> latest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename();
    // Names have one length, so that they sort like their numbers.
    if (name.starts_with("step-") && fs::exists(entry.path() / "manifest.json", error)) {
      latest = std::max(latest.value_or(""), entry.path().string());
    }
  }
  return latest;
}

}  // namespace

Result<TrainedModel> ReadTrainedModel(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return Err(NotFound("no checkpoint " + path));
  if (!fs::is_directory(path, error)) return ReadMergedFile(path);
  if (fs::exists(fs::path(path) / "manifest.json", error)) return ReadCheckpointDirectory(path);
  if (const auto latest = LatestIn(path)) return ReadCheckpointDirectory(*latest);
  return Err(NotFound("no checkpoint in " + path +
                      ": expected manifest.json, or step-* directories that have one"));
}

}  // namespace slackline::worker
