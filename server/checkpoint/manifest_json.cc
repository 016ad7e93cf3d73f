#include "server/checkpoint/manifest_json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <set>

#include "common/hash.h"
#include "proto/wire_header.h"

namespace slackline::server {
namespace {

using Json = nlohmann::ordered_json;

// Any valid manifest's brackets nest less. What nests deeper is refused before anything walks it,
// since each level of a walk takes stack.
constexpr int kMaxJsonDepth = 16;

// Discarded if it is not JSON or nests too deep.
Json ParseBounded(std::string_view text) {
  bool too_deep = false;
  const auto on_event = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxJsonDepth;
    return !too_deep;
  };
  Json json = Json::parse(text, on_event, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

Json ChunkToJson(const control::Chunk& chunk) {
  Json segments = Json::array();
  for (const control::Segment& segment : chunk.segments()) {
    segments.push_back(
        {segment.tensor(), segment.tensor_offset(), segment.chunk_offset(), segment.count()});
  }
  return {{"index", chunk.index()},
          {"flat_offset", chunk.flat_offset()},
          {"count", chunk.count()},
          {"file", chunk.shard()},
          {"segments", std::move(segments)}};
}

control::Chunk ChunkFromJson(const Json& json) {
  control::Chunk chunk;
  chunk.set_index(json.at("index").get<uint32_t>());
  chunk.set_flat_offset(json.at("flat_offset").get<uint64_t>());
  chunk.set_count(json.at("count").get<uint64_t>());
  chunk.set_shard(json.at("file").get<uint32_t>());
  for (const Json& in : json.at("segments")) {
    control::Segment* segment = chunk.add_segments();
    segment->set_tensor(in.at(0).get<uint32_t>());
    segment->set_tensor_offset(in.at(1).get<uint64_t>());
    segment->set_chunk_offset(in.at(2).get<uint64_t>());
    segment->set_count(in.at(3).get<uint64_t>());
  }
  return chunk;
}

Json JobToJson(const control::JobSpec& job) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  const auto status = google::protobuf::util::MessageToJsonString(job, &text, options);
  return status.ok() ? Json::parse(text, nullptr, false) : Json::object();
}

Status JobFromJson(const Json& json, control::JobSpec* job) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(json.dump(), job, options);
  if (!status.ok()) return DataLoss(std::string(status.message()));
  return OkStatus();
}

Result<Manifest> FromJson(const Json& json, const std::string& path) {
  const auto version = json.at("version").get<uint32_t>();
  if (version != kManifestVersion) {
    return Err(InvalidArgument(path + ": version " + std::to_string(version) +
                               "; this build reads version " + std::to_string(kManifestVersion)));
  }
  Manifest manifest;
  manifest.run_id = json.at("run_id").get<std::string>();
  manifest.clock = json.at("clock").get<Clock>();
  manifest.unix_time_s = json.at("unix_time_s").get<int64_t>();
  if (const Status status = JobFromJson(json.at("job"), &manifest.job); !status.ok()) {
    return Err(DataLoss(path + ": job: " + status.message()));
  }
  for (const Json& in : json.at("tensors")) {
    control::TensorSpec tensor;
    tensor.set_name(in.at("name").get<std::string>());
    for (const Json& extent : in.at("shape")) tensor.add_shape(extent.get<int64_t>());
    tensor.set_decay(in.at("decay").get<bool>());
    manifest.tensors.push_back(std::move(tensor));
  }
  for (const Json& in : json.at("chunks")) manifest.chunks.push_back(ChunkFromJson(in));
  for (const Json& in : json.at("files")) {
    const std::optional<uint64_t> hash = HashFromHex(in.at("xxh3").get<std::string>());
    if (!hash) return Err(DataLoss(path + ": files: xxh3 is not 16 hexadecimal digits"));
    manifest.files.push_back(
        {in.at("name").get<std::string>(), in.at("bytes").get<uint64_t>(), *hash});
  }
  manifest.slot_names = json.at("slot_names").get<std::vector<std::string>>();
  for (const Json& in : json.at("loss_scales")) {
    manifest.loss_scales[in.at(0).get<WorkerId>()] = in.at(1).get<double>();
  }
  return manifest;
}

Status CheckSegments(const control::Chunk& chunk, const Manifest& manifest,
                     const std::string& where) {
  uint64_t next = 0;
  for (const control::Segment& segment : chunk.segments()) {
    if (segment.tensor() >= manifest.tensors.size() || segment.chunk_offset() != next ||
        segment.count() == 0 || segment.count() > chunk.count() - next) {
      return DataLoss(where + ": its segments do not tile it");
    }
    next += segment.count();
  }
  if (next != chunk.count()) return DataLoss(where + ": its segments do not tile it");
  return OkStatus();
}

// Elements of all tensors, refusing sizes that no model has.
Result<uint64_t> FlatCount(const Manifest& manifest, const std::string& path) {
  constexpr uint64_t kMaxElements = uint64_t{1} << 48;
  uint64_t total = 0;
  for (const control::TensorSpec& tensor : manifest.tensors) {
    uint64_t count = 1;
    for (int64_t extent : tensor.shape()) {
      if (extent <= 0 || static_cast<uint64_t>(extent) > kMaxElements / count) {
        return Err(DataLoss(path + ": tensor '" + tensor.name() + "' has an impossible shape"));
      }
      count *= static_cast<uint64_t>(extent);
    }
    if (count > kMaxElements - total) return Err(DataLoss(path + ": the model is too large"));
    total += count;
  }
  return total;
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  Json json = {{"version", kManifestVersion},    {"run_id", manifest.run_id},
               {"clock", manifest.clock},        {"unix_time_s", manifest.unix_time_s},
               {"job", JobToJson(manifest.job)}, {"slot_names", manifest.slot_names}};
  Json& files = json["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", HashToHex(file.xxh3)}});
  }
  Json& tensors = json["tensors"] = Json::array();
  for (const control::TensorSpec& tensor : manifest.tensors) {
    tensors.push_back(
        {{"name", tensor.name()},
         {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
         {"decay", tensor.decay()}});
  }
  Json& chunks = json["chunks"] = Json::array();
  for (const control::Chunk& chunk : manifest.chunks) chunks.push_back(ChunkToJson(chunk));
  Json& scales = json["loss_scales"] = Json::array();
  for (const auto& [worker, scale] : manifest.loss_scales) scales.push_back({worker, scale});
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Manifest> ManifestFromJson(std::string_view text, const std::string& path) {
  const Json json = ParseBounded(text);
  if (json.is_discarded()) return Err(DataLoss(path + ": it is not JSON, or nests too deep"));
  try {
    SLACKLINE_ASSIGN_OR_RETURN(Manifest manifest, FromJson(json, path));
    SLACKLINE_RETURN_ERR_IF_ERROR(CheckManifest(manifest, path));
    return manifest;
  } catch (const Json::exception& error) {
    return Err(DataLoss(path + ": " + error.what()));
  }
}

Status CheckManifest(const Manifest& manifest, const std::string& path) {
  // Training goes on at the clock after it.
  if (manifest.clock < kNoClock || manifest.clock == INT64_MAX) {
    return DataLoss(path + ": clock is out of range");
  }
  std::set<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    // A name from a file must not lead out of the checkpoint's directory.
    if (file.name.empty() || file.name.front() == '.' ||
        file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return DataLoss(path + ": '" + file.name + "' is not a plain file name");
    }
    if (!names.insert(file.name).second) return DataLoss(path + ": '" + file.name + "' twice");
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const uint64_t flat_count, FlatCount(manifest, path));
  uint64_t next = 0;
  for (size_t i = 0; i < manifest.chunks.size(); ++i) {
    const control::Chunk& chunk = manifest.chunks[i];
    const std::string where = path + ": chunk " + std::to_string(i);
    if (chunk.index() != i || chunk.flat_offset() != next || chunk.count() == 0 ||
        chunk.count() > proto::kMaxPayloadBytes / sizeof(float)) {
      return DataLoss(where + ": chunks do not tile the parameters");
    }
    if (chunk.shard() >= manifest.files.size()) return DataLoss(where + ": it has no file");
    SLACKLINE_RETURN_IF_ERROR(CheckSegments(chunk, manifest, where));
    next += chunk.count();
  }
  if (next != flat_count) {
    return DataLoss(path + ": chunks hold " + std::to_string(next) + " elements, tensors " +
                    std::to_string(flat_count));
  }
  return OkStatus();
}

}  // namespace slackline::server
