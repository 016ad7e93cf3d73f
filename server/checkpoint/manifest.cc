#include "server/checkpoint/manifest.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <filesystem>
#include <optional>

#include "common/file.h"
#include "common/hash.h"
#include "server/checkpoint/manifest_json.h"

namespace slackline::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifestName = "manifest.json";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";

std::string ManifestPath(const std::string& directory) {
  return directory + "/" + std::string(kManifestName);
}

// The step of a checkpoint's directory name; nullopt if it is something else.
std::optional<int64_t> StepOf(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const char* begin = name.data() + kStepPrefix.size();
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [parsed, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || parsed != end || step < 0) return std::nullopt;
  return step;
}

std::string Format(const char* format, auto... values) {
  char text[96];
  snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace

std::string ShardFileName(ShardIndex shard, uint32_t shard_count) {
  return Format("shard-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard, shard_count);
}

std::string CheckpointName(Clock clock) { return Format("step-%08" PRId64, clock + 1); }

Status WriteManifest(const std::string& directory, const Manifest& manifest) {
  const std::string path = ManifestPath(directory);
  SLACKLINE_RETURN_IF_ERROR(CheckManifest(manifest, path));
  return WriteFileAtomically(path, ManifestToJson(manifest));
}

Result<Manifest> ReadManifest(const std::string& directory) {
  const std::string path = ManifestPath(directory);
  SLACKLINE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxManifestBytes));
  return ManifestFromJson(text, path);
}

Status VerifyFile(const std::string& directory, const ManifestFile& file) {
  const std::string path = directory + "/" + file.name;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const FileDigest found, HashFile(path));
  if (found.bytes != file.bytes) {
    return DataLoss(path + ": " + std::to_string(found.bytes) + " bytes, the manifest says " +
                    std::to_string(file.bytes));
  }
  if (found.xxh3 != file.xxh3) {
    return DataLoss(path + ": checksum " + HashToHex(found.xxh3) + ", the manifest says " +
                    HashToHex(file.xxh3) + ": the file is damaged");
  }
  return OkStatus();
}

Status VerifyFiles(const std::string& directory, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    SLACKLINE_RETURN_IF_ERROR(VerifyFile(directory, file));
  }
  return OkStatus();
}

Status PublishCheckpoint(const std::string& directory, const std::string& target) {
  SLACKLINE_RETURN_IF_ERROR(SyncDirectory(directory));
  std::error_code ignored;
  if (!fs::exists(target, ignored)) return RenameDurably(directory, target);
  // The two change names in one step, so that there is a whole checkpoint at every moment.
  if (renameat2(AT_FDCWD, directory.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    return ErrnoStatus(errno, "replacing checkpoint " + target);
  }
  SLACKLINE_RETURN_IF_ERROR(SyncDirectory(fs::path(target).parent_path()));
  fs::remove_all(directory, ignored);  // The old one; a leftover at worst.
  return OkStatus();
}

Result<std::string> FindLatestCheckpoint(const std::string& root) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  fs::directory_iterator entries(root, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::optional<int64_t> step = StepOf(entries->path().filename().string());
    if (step) found.emplace_back(*step, entries->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Err(ErrnoStatus(error.value(), "reading checkpoint directory " + root));
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [step, directory] : found) {
    const Result<Manifest> manifest = ReadManifest(directory);
    if (manifest) return directory;
    LOG(WARNING) << "passing over checkpoint " << directory << ": " << manifest.error();
  }
  return Err(NotFound(root + ": no complete checkpoint (step-*/manifest.json) in it"));
}

Status RemoveLeftovers(const std::string& root) {
  std::vector<fs::path> leftovers;
  std::error_code error;
  fs::directory_iterator entries(root, error);
  if (error == std::errc::no_such_file_or_directory) return OkStatus();
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().filename().string().starts_with(kTemporaryPrefix)) {
      leftovers.push_back(entries->path());
    }
  }
  for (const fs::path& path : leftovers) {
    if (!error) fs::remove_all(path, error);
  }
  if (error) return ErrnoStatus(error.value(), "removing unfinished checkpoints in " + root);
  return OkStatus();
}

}  // namespace slackline::server
