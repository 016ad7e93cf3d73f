// manifest.json of a data directory, as scripts/prepare_data writes it: what the records are and
// which shard files hold them, with sizes and CRC-32.
// Threading: values and pure functions.
// Errors: NotFound names the file that is missing and says how to make it; DataLoss names the field
// of the manifest that is missing or wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace slackline::worker {

enum class DataKind : uint8_t { kText, kImages };

struct ShardFile {
  std::string name;  // Inside the data directory; has no '/'.
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // As in zlib.
};

// The sizes that the model must agree with.
struct DataShape {
  DataKind kind = DataKind::kText;
  size_t record_bytes = 1;  // Text: 1, a token. Images: 1 + features, the label first.
  size_t vocabulary = 0;    // Text: tokens are below it. At most 256.
  size_t features = 0;      // Images: pixels.
  size_t classes = 0;       // Images: labels are below it. At most 256.
  size_t feature_max = 0;   // Images: the largest pixel, which becomes 1.0.
};

struct DataManifest {
  DataShape shape;
  std::map<std::string, std::vector<ShardFile>> splits;  // "train", "validation".
  std::string fingerprint;  // 16 hexadecimal digits: all workers of a job read the same data.
};

Result<DataManifest> ReadManifest(const std::string& directory);

}  // namespace slackline::worker
