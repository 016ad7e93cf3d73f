// Manifests: round trip, what is refused, and which directory is the latest checkpoint.
#include "server/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/file.h"
#include "server/checkpoint/manifest_json.h"
#include "tests/server/checkpoint_fixture.h"

namespace slackline::server {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

Manifest TestManifest(Clock clock = 41) {
  control::JobSpec job = TestJob(3);
  job.set_model_config_json("{\"text\": \"quote \\\" and \\u00e9\"}");
  job.set_seed(UINT64_MAX);
  job.mutable_optimizer()->set_name("adam");
  Manifest manifest = ManifestOf(TestMap(job, {3, 5}), clock);
  manifest.files = {{ShardFileName(0, 1), 1234, 0xFEDCBA9876543210}};
  manifest.loss_scales = {{0, 1024}, {7, 0.5}};
  manifest.unix_time_s = 1'700'000'000;
  return manifest;
}

TEST(Manifest, RoundTrip) {
  const Manifest in = TestManifest();
  const Result<Manifest> out = ManifestFromJson(ManifestToJson(in), "m");
  ASSERT_TRUE(out.has_value()) << out.error();
  EXPECT_EQ(out->run_id, in.run_id);
  EXPECT_EQ(out->clock, in.clock);
  EXPECT_EQ(out->files, in.files);
  EXPECT_EQ(out->slot_names, in.slot_names);
  EXPECT_EQ(out->loss_scales, in.loss_scales);
  EXPECT_EQ(out->unix_time_s, in.unix_time_s);
  EXPECT_EQ(out->job.SerializeAsString(), in.job.SerializeAsString());
  ASSERT_EQ(out->chunks.size(), in.chunks.size());
  for (size_t i = 0; i < in.chunks.size(); ++i) {
    EXPECT_EQ(out->chunks[i].SerializeAsString(), in.chunks[i].SerializeAsString());
    EXPECT_EQ(out->tensors[i].SerializeAsString(), in.tensors[i].SerializeAsString());
  }
}

TEST(Manifest, WhatCannotBeRightIsRefused) {
  const std::string good = ManifestToJson(TestManifest());
  struct Case {
    const char* name;
    std::function<void(Json&)> spoil;
    const char* message;
    StatusCode code = StatusCode::kDataLoss;
  };
  const std::vector<Case> cases = {
      {"version", [](Json& j) { j["version"] = 99; }, "version 99", StatusCode::kInvalidArgument},
      {"no clock", [](Json& j) { j.erase("clock"); }, "clock"},
      {"clock type", [](Json& j) { j["clock"] = "x"; }, "type"},
      {"negative clock", [](Json& j) { j["clock"] = -7; }, "clock"},
      {"last clock", [](Json& j) { j["clock"] = INT64_MAX; }, "clock"},
      {"file leads out", [](Json& j) { j["files"][0]["name"] = "../x"; }, "plain file name"},
      {"file is hidden", [](Json& j) { j["files"][0]["name"] = ".x"; }, "plain file name"},
      {"file twice", [](Json& j) { j["files"].push_back(j["files"][0]); }, "twice"},
      {"hash", [](Json& j) { j["files"][0]["xxh3"] = "12"; }, "16 hexadecimal"},
      {"gap", [](Json& j) { j["chunks"][1]["flat_offset"] = 4; }, "do not tile"},
      {"order", [](Json& j) { std::swap(j["chunks"][0], j["chunks"][1]); }, "do not tile"},
      {"huge chunk", [](Json& j) { j["chunks"][0]["count"] = uint64_t{1} << 40; }, "do not tile"},
      {"no file", [](Json& j) { j["chunks"][0]["file"] = 5; }, "no file"},
      {"segment", [](Json& j) { j["chunks"][0]["segments"][0][3] = 2; }, "segments"},
      {"segment tensor", [](Json& j) { j["chunks"][0]["segments"][0][0] = 9; }, "segments"},
      {"shape", [](Json& j) { j["tensors"][0]["shape"][0] = -1; }, "impossible shape"},
      {"huge shape",
       [](Json& j) {
         j["tensors"][0]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
       },
       "impossible shape"},
      {"tensors", [](Json& j) { j["tensors"][0]["shape"][0] = 4; }, "chunks hold 8"},
      {"job", [](Json& j) { j["job"] = 7; }, "job"},
  };
  for (const Case& c : cases) {
    Json json = Json::parse(good);
    c.spoil(json);
    const Result<Manifest> result = ManifestFromJson(json.dump(), "dir/manifest.json");
    ASSERT_FALSE(result.has_value()) << c.name;
    EXPECT_EQ(result.error().code(), c.code) << c.name << ": " << result.error();
    EXPECT_THAT(result.error().message(),
                testing::AllOf(HasSubstr("dir/manifest.json"), HasSubstr(c.message)))
        << c.name;
  }
  for (size_t cut : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 3}) {
    EXPECT_FALSE(ManifestFromJson(good.substr(0, cut), "m").has_value()) << cut;
  }
}

// Deep enough to use up a thread's stack in anything that walks the value.
TEST(Manifest, NestingWithoutEndIsRefused) {
  Json json = Json::parse(ManifestToJson(TestManifest()));
  json["job"] = "HERE";
  std::string text = json.dump();
  const size_t depth = 1'000'000;
  text.replace(text.find("\"HERE\""), 6, std::string(depth, '[') + std::string(depth, ']'));
  const Result<Manifest> result = ManifestFromJson(text, "dir/manifest.json");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(result.error().message(), HasSubstr("nests too deep"));
}

class CheckpointDirectories : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }
  void Publish(Clock clock) {
    const std::string temporary = root_ + "/.tmp-1";
    fs::create_directories(temporary);
    ASSERT_TRUE(WriteManifest(temporary, TestManifest(clock)).ok());
    const Status status = PublishCheckpoint(temporary, root_ + "/" + CheckpointName(clock));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(fs::exists(temporary));
  }
  const std::string root_ = testing::TempDir() + "slackline_manifest_test";
};

TEST_F(CheckpointDirectories, LatestIsTheHighestCompleteOne) {
  EXPECT_EQ(FindLatestCheckpoint(root_).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(FindLatestCheckpoint(root_ + "/none").error().code(), StatusCode::kNotFound);
  Publish(9);
  Publish(99);
  fs::create_directories(root_ + "/step-00000500");  // Without a manifest.
  fs::create_directories(root_ + "/step-9x");
  fs::create_directories(root_ + "/.tmp-9");
  ASSERT_TRUE(FindLatestCheckpoint(root_).has_value());
  EXPECT_EQ(*FindLatestCheckpoint(root_), root_ + "/step-00000100");
  ASSERT_TRUE(RemoveLeftovers(root_).ok());
  EXPECT_FALSE(fs::exists(root_ + "/.tmp-9"));
  EXPECT_TRUE(fs::exists(root_ + "/step-00000010"));
  EXPECT_TRUE(RemoveLeftovers(root_ + "/none").ok());
}

TEST_F(CheckpointDirectories, TheSameStepIsReplaced) {
  Publish(9);
  Manifest other = TestManifest(9);
  other.run_id = "other-run";
  const std::string temporary = root_ + "/.tmp-2";
  fs::create_directories(temporary);
  ASSERT_TRUE(WriteManifest(temporary, other).ok());
  ASSERT_TRUE(PublishCheckpoint(temporary, root_ + "/" + CheckpointName(9)).ok());
  EXPECT_EQ(ReadManifest(root_ + "/" + CheckpointName(9))->run_id, "other-run");
  EXPECT_FALSE(fs::exists(temporary));
}

}  // namespace
}  // namespace slackline::server
