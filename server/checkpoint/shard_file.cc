#include "server/checkpoint/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/byte_order.h"
#include "common/hash.h"

namespace slackline::server {
namespace {

using Json = nlohmann::ordered_json;

// The data starts on a cache line, so that mapped tensors are aligned for SIMD.
constexpr size_t kDataAlignBytes = 64;
constexpr size_t kLengthBytes = sizeof(uint64_t);

std::string ChunkKey(ChunkIndex chunk) { return "chunk." + std::to_string(chunk); }

std::string StateToJson(const ChunkState& state) {
  Json watermarks = Json::array();
  for (const ChunkWatermark& mark : state.watermarks) {
    watermarks.push_back({mark.worker, mark.incarnation, mark.clock});
  }
  return Json{{"version", state.version},
              {"steps", state.steps},
              {"xxh3", HashToHex(state.xxh3)},
              {"watermarks", std::move(watermarks)}}
      .dump();
}

Result<ChunkState> StateFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Err(DataLoss("it is not JSON"));
  try {
    ChunkState state;
    state.version = json.at("version").get<uint64_t>();
    state.steps = json.at("steps").get<uint64_t>();
    const std::optional<uint64_t> hash = HashFromHex(json.at("xxh3").get<std::string>());
    if (!hash) return Err(DataLoss("xxh3 is not 16 hexadecimal digits"));
    state.xxh3 = *hash;
    for (const Json& mark : json.at("watermarks")) {
      state.watermarks.push_back(
          {mark.at(0).get<WorkerId>(), mark.at(1).get<Incarnation>(), mark.at(2).get<Clock>()});
    }
    return state;
  } catch (const Json::exception& error) {
    return Err(DataLoss(error.what()));
  }
}

// The longest text that a chunk's metadata can become: what room is kept for.
ChunkState LongestState(size_t max_watermarks) {
  ChunkState state{UINT64_MAX, UINT64_MAX, UINT64_MAX, {}};
  state.watermarks.assign(max_watermarks, {UINT32_MAX, UINT32_MAX, INT64_MIN});
  return state;
}

ConstBytes AsBytes(const float* data, size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(float)};
}

}  // namespace

Result<ShardFileWriter> ShardFileWriter::Create(const std::string& path,
                                                const ShardFileLayout& layout) {
  SLACKLINE_ASSIGN_OR_RETURN(Fd fd, OpenForWriting(path));
  ShardFileWriter writer(path, std::move(fd), layout);
  const uint64_t total = writer.header_bytes_ + writer.data_bytes_;
  // A disk that is too full says so now and not after minutes of writing. File systems that cannot
  // reserve say so, and are written to all the same.
  const int error = posix_fallocate(writer.fd_.get(), 0, static_cast<off_t>(total));
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    return Err(ErrnoStatus(error, "reserving " + std::to_string(total) + " bytes for " + path));
  }
  return writer;
}

ShardFileWriter::ShardFileWriter(std::string path, Fd fd, const ShardFileLayout& layout)
    : path_(std::move(path)), fd_(std::move(fd)), layout_(layout) {
  SafetensorsMetadata longest;
  const std::string state = StateToJson(LongestState(layout_.max_watermarks));
  for (const ShardFileLayout::ChunkShape& chunk : layout_.chunks) {
    offset_of_[chunk.index] = data_bytes_;
    data_bytes_ += (1 + layout_.slot_names.size()) * chunk.count * sizeof(float);
    longest[ChunkKey(chunk.index)] = state;
  }
  const size_t needed = Header(longest, 0).size();
  header_bytes_ = (needed + kDataAlignBytes - 1) / kDataAlignBytes * kDataAlignBytes;
}

std::string ShardFileWriter::Header(const SafetensorsMetadata& metadata, size_t bytes) const {
  Json json = {{"__metadata__", metadata}};
  uint64_t begin = 0;
  for (const ShardFileLayout::ChunkShape& chunk : layout_.chunks) {
    auto add = [&](const std::string& name) {
      const uint64_t end = begin + chunk.count * sizeof(float);
      json[ChunkKey(chunk.index) + "." + name] = {
          {"dtype", "F32"}, {"shape", {chunk.count}}, {"data_offsets", {begin, end}}};
      begin = end;
    };
    add("weights");
    for (const std::string& slot : layout_.slot_names) add(slot);
  }
  std::string text(kLengthBytes, '\0');
  text += json.dump();
  if (text.size() < bytes) text.append(bytes - text.size(), ' ');
  const uint64_t length = text.size() - kLengthBytes;
  StoreLe(reinterpret_cast<std::byte*>(text.data()), length);
  return text;
}

Status ShardFileWriter::WriteAt(uint64_t offset, ConstBytes bytes) {
  if (lseek(fd_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    return ErrnoStatus(errno, "seeking in " + path_);
  }
  return WriteAll(fd_, bytes, path_);
}

Status ShardFileWriter::WriteChunk(const ChunkCut& cut) {
  const auto offset = offset_of_.find(cut.chunk);
  if (offset == offset_of_.end() || metadata_.contains(ChunkKey(cut.chunk))) {
    return FailedPrecondition(path_ + ": chunk " + std::to_string(cut.chunk) +
                              " is written twice or is not the file's");
  }
  if (cut.watermarks.size() > layout_.max_watermarks) {
    return ResourceExhausted(path_ + ": chunk " + std::to_string(cut.chunk) + " has " +
                             std::to_string(cut.watermarks.size()) +
                             " workers, the header has room for " +
                             std::to_string(layout_.max_watermarks));
  }
  const ConstBytes data = AsBytes(cut.data, (1 + cut.slot_count) * cut.count);
  SLACKLINE_RETURN_IF_ERROR(WriteAt(header_bytes_ + offset->second, data));
  metadata_[ChunkKey(cut.chunk)] =
      StateToJson({cut.version, cut.steps, Hash64(data), cut.watermarks});
  return OkStatus();
}

Result<FileDigest> ShardFileWriter::Finish() {
  if (metadata_.size() != layout_.chunks.size()) {
    return Err(FailedPrecondition(path_ + ": " + std::to_string(metadata_.size()) + " of " +
                                  std::to_string(layout_.chunks.size()) + " chunks written"));
  }
  const std::string header = Header(metadata_, header_bytes_);
  SLACKLINE_RETURN_ERR_IF_ERROR(WriteAt(0, std::as_bytes(std::span(header))));
  SLACKLINE_RETURN_ERR_IF_ERROR(SyncFile(fd_, path_));
  SLACKLINE_RETURN_ERR_IF_ERROR(fd_.Close(path_));
  return HashFile(path_);
}

Result<ShardFileReader> ShardFileReader::Open(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  return ShardFileReader(std::move(reader));
}

Result<ChunkState> ShardFileReader::ReadChunk(ChunkIndex chunk, size_t count,
                                              const std::vector<std::string>& slot_names,
                                              float* out) const {
  const std::string key = ChunkKey(chunk);
  const std::string where = reader_.path() + ": chunk " + std::to_string(chunk);
  const auto metadata = reader_.metadata().find(key);
  if (metadata == reader_.metadata().end()) return Err(NotFound(where + " is not in the file"));
  Result<ChunkState> state = StateFromJson(metadata->second);
  if (!state) return Err(DataLoss(where + ": its metadata: " + state.error().message()));
  float* next = out;
  auto copy = [&](const std::string& name) {
    const Status status = reader_.CopyFloats(key + "." + name, {next, count});
    next += count;
    return status;
  };
  SLACKLINE_RETURN_ERR_IF_ERROR(copy("weights"));
  for (const std::string& slot : slot_names) SLACKLINE_RETURN_ERR_IF_ERROR(copy(slot));
  if (Hash64(AsBytes(out, static_cast<size_t>(next - out))) != state->xxh3) {
    return Err(DataLoss(where + ": its data does not have the checksum that it was written with"));
  }
  return state;
}

}  // namespace slackline::server
