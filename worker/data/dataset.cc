#include "worker/data/dataset.h"

#include <glog/logging.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace slackline::worker {
namespace {

std::string Hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

Status Verify(const std::string& path, const ShardFile& expected, ConstBytes found) {
  const std::string advice = "; make the data again with scripts/prepare_data";
  if (found.size() != expected.bytes) {
    return DataLoss("damaged data file " + path + ": expected " + std::to_string(expected.bytes) +
                    " bytes, found " + std::to_string(found.size()) + advice);
  }
  const auto crc =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(found.data()), found.size()));
  if (crc != expected.crc32) {
    return DataLoss("damaged data file " + path + ": expected CRC-32 " + Hex(expected.crc32) +
                    ", found " + Hex(crc) + advice);
  }
  return OkStatus();
}

}  // namespace

Result<Dataset> Dataset::Open(const std::string& directory, const DataManifest& manifest,
                              const std::string& split) {
  const auto found = manifest.splits.find(split);
  if (found == manifest.splits.end() || found->second.empty()) {
    return Err(NotFound("the data in " + directory + " has no split '" + split + "'"));
  }
  Dataset dataset;
  dataset.shape_ = manifest.shape;
  uint64_t end = 0;
  for (const ShardFile& shard : found->second) {
    const std::string path = directory + "/" + shard.name;
    auto opened = MappedFile::Open(path);
    if (!opened && opened.error().code() == StatusCode::kNotFound) {
      return Err(NotFound("missing data file " + path +
                          "; make the data again with scripts/prepare_data"));
    }
    SLACKLINE_ASSIGN_OR_RETURN(MappedFile file, std::move(opened));
    SLACKLINE_RETURN_ERR_IF_ERROR(Verify(path, shard, file.bytes()));
    end += shard.bytes;
    dataset.shards_.push_back(std::move(file));
    dataset.shard_ends_.push_back(end);
  }
  return dataset;
}

void Dataset::Copy(uint64_t offset, std::span<uint8_t> out) const {
  CHECK_LE(offset, size_bytes());
  CHECK_LE(out.size(), size_bytes() - offset);
  auto shard = static_cast<size_t>(
      std::upper_bound(shard_ends_.begin(), shard_ends_.end(), offset) - shard_ends_.begin());
  while (!out.empty()) {
    const ConstBytes bytes = shards_[shard].bytes();
    const uint64_t begin = offset - (shard_ends_[shard] - bytes.size());
    const size_t count = std::min<size_t>(out.size(), bytes.size() - begin);
    std::memcpy(out.data(), bytes.data() + begin, count);
    out = out.subspan(count);
    offset += count;
    ++shard;
  }
}

}  // namespace slackline::worker
