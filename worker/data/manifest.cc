#include "worker/data/manifest.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "common/file.h"
#include "common/hash.h"

namespace slackline::worker {
namespace {

using nlohmann::json;

constexpr size_t kMaxManifestBytes = 64 << 20;
constexpr uint64_t kMaxShardBytes = uint64_t{1} << 40;
constexpr uint64_t kMaxRecordBytes = 1 << 20;

// Reads fields of one JSON object; the first one that is missing or out of range decides the status
// of the whole reading, so that callers check once.
class Reader {
 public:
  Reader(const json& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {}

  uint64_t Number(const char* key, uint64_t low, uint64_t high) {
    const auto found = object_.find(key);
    if (found != object_.end() && found->is_number_unsigned()) {
      const auto value = found->get<uint64_t>();
      if (value >= low && value <= high) return value;
    }
    Fail(key, "a number from " + std::to_string(low) + " to " + std::to_string(high));
    return low;
  }

  std::string Text(const char* key) {
    const auto found = object_.find(key);
    if (found != object_.end() && found->is_string()) return found->get<std::string>();
    Fail(key, "a text");
    return {};
  }

  void Fail(const std::string& key, const std::string& expected) {
    if (!status_.ok()) return;
    const auto found = object_.find(key);
    status_ = DataLoss(where_ + ": field '" + key + "': expected " + expected + ", found " +
                       (found == object_.end() ? "none" : found->dump().substr(0, 60)));
  }

 private:
  const json& object_;
  std::string where_;
  Status& status_;
};

ShardFile ReadShard(const json& entry, const std::string& where, Status& status) {
  Reader reader(entry, where, status);
  ShardFile shard;
  shard.name = reader.Text("file");
  // A manifest names files of its own directory only.
  if (shard.name.empty() || shard.name.find('/') != std::string::npos || shard.name[0] == '.') {
    reader.Fail("file", "a file name without a directory");
  }
  shard.bytes = reader.Number("bytes", 1, kMaxShardBytes);
  const std::string crc = reader.Text("crc32");
  const auto [end, error] = std::from_chars(crc.data(), crc.data() + crc.size(), shard.crc32, 16);
  if (error != std::errc() || end != crc.data() + crc.size() || crc.size() != 8) {
    reader.Fail("crc32", "8 hexadecimal digits");
  }
  return shard;
}

DataShape ReadShape(const json& root, const std::string& where, Status& status) {
  Reader reader(root, where, status);
  DataShape shape;
  if (reader.Text("format") != "slackline-data") reader.Fail("format", "slackline-data");
  reader.Number("version", 1, 1);
  const std::string kind = reader.Text("kind");
  if (kind == "text") {
    shape.kind = DataKind::kText;
    shape.record_bytes = reader.Number("record_bytes", 1, 1);
    shape.vocabulary = reader.Number("vocabulary", 2, 256);
  } else if (kind == "images") {
    shape.kind = DataKind::kImages;
    shape.record_bytes = reader.Number("record_bytes", 2, kMaxRecordBytes);
    shape.features = reader.Number("features", shape.record_bytes - 1, shape.record_bytes - 1);
    shape.classes = reader.Number("classes", 1, 256);
    shape.feature_max = reader.Number("feature_max", 1, 255);
  } else {
    reader.Fail("kind", "text or images");
  }
  return shape;
}

}  // namespace

Result<DataManifest> ReadManifest(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  auto read = ReadFile(path, kMaxManifestBytes);
  if (!read && read.error().code() == StatusCode::kNotFound) {
    return Err(NotFound("no data manifest " + path + "; make the data with scripts/prepare_data"));
  }
  SLACKLINE_ASSIGN_OR_RETURN(const std::string text, std::move(read));
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Err(DataLoss(path + ": not a JSON object; make the data again"));

  DataManifest manifest;
  Status status;
  manifest.shape = ReadShape(root, path, status);
  const auto splits = root.find("splits");
  if (splits == root.end() || !splits->is_object()) {
    Reader(root, path, status).Fail("splits", "an object");
  } else {
    for (const auto& [name, entries] : splits->items()) {
      for (const auto& entry : entries) {
        if (!status.ok()) break;
        manifest.splits[name].push_back(
            ReadShard(entry.is_object() ? entry : json::object(), path + ": " + name, status));
      }
    }
  }
  if (!status.ok()) return Err(std::move(status));
  manifest.fingerprint = HashToHex(Hash64(std::as_bytes(std::span(text))));
  return manifest;
}

}  // namespace slackline::worker
