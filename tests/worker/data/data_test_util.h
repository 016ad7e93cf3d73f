// Data directories written by the test itself, the way scripts/prepare_data writes them.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace slackline::worker {

// A directory that goes with the object.
class TempDirectory {
 public:
  TempDirectory() {
    std::string name = ::testing::TempDir() + "/slackline-data-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteTestFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Writes the shards and returns their manifest entries.
inline std::string WriteTestSplit(const std::string& directory, const std::string& split,
                                  const std::vector<std::string>& shards) {
  std::string entries;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = split + "-" + std::to_string(i) + ".bin";
    WriteTestFile(directory + "/" + name, shards[i]);
    char crc[9];
    std::snprintf(crc, sizeof crc, "%08lx",
                  crc32_z(0, reinterpret_cast<const Bytef*>(shards[i].data()), shards[i].size()));
    entries += (i ? "," : "") + std::string(R"({"file":")") + name + R"(","bytes":)" +
               std::to_string(shards[i].size()) + R"(,"crc32":")" + crc + R"("})";
  }
  return "\"" + split + "\":[" + entries + "]";
}

inline void WriteTestText(const std::string& directory, const std::vector<std::string>& train,
                          const std::vector<std::string>& validation) {
  WriteTestFile(
      directory + "/manifest.json",
      R"({"format":"slackline-data","version":1,"kind":"text","record_bytes":1,"vocabulary":256,)"
      R"("splits":{)" +
          WriteTestSplit(directory, "train", train) + "," +
          WriteTestSplit(directory, "validation", validation) + "}}");
}

// Records of a label and two pixels.
inline void WriteTestImages(const std::string& directory, const std::string& train) {
  WriteTestFile(
      directory + "/manifest.json",
      R"({"format":"slackline-data","version":1,"kind":"images","record_bytes":3,"features":2,)"
      R"("classes":4,"feature_max":8,"splits":{)" +
          WriteTestSplit(directory, "train", {train}) + "}}");
}

}  // namespace slackline::worker
