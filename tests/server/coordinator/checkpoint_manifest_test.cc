#include "server/coordinator/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/file.h"
#include "tests/server/coordinator/cluster.h"
#include "tests/testing/temp_directory.h"

namespace slackline::server::coordinator {
namespace {

using ::testing::HasSubstr;

// A running job of two shards, and a complete plan whose files lie in its directory.
struct CheckpointManifestTest : ::testing::Test {
  CheckpointManifestTest() : cluster(Options()) {
    cluster.StartAll(2, 1);
    plan.id = 1;
    plan.clock = 41;
    plan.directory = directory.Path(".tmp-1");
    plan.target = directory.Path("step-00000042");
    EXPECT_TRUE(CreateDirectories(plan.directory).ok());
    for (ShardIndex shard = 0; shard < 2; ++shard) {
      const std::string name = ShardFileName(shard, 2);
      const std::string content(10 + shard, 'x');
      EXPECT_TRUE(WriteFileAtomically(plan.directory + "/" + name, content).ok());
      plan.files.push_back(
          {shard, name, content.size(), "00000000000000f" + std::to_string(shard)});
    }
  }
  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.run_id = "test";
    options.expected_servers = 2;
    return options;
  }
  slackline::testing::TempDirectory directory;
  Cluster cluster;
  CheckpointPlan plan;
};

TEST_F(CheckpointManifestTest, WhatIsCommittedIsWhatIsRestored) {
  ASSERT_TRUE(CommitPlan(plan, *cluster.state, 1234567).ok());
  EXPECT_FALSE(std::filesystem::exists(plan.directory));
  const Result<Manifest> manifest = ReadManifest(plan.target);
  ASSERT_TRUE(manifest.has_value()) << manifest.error();
  EXPECT_EQ(manifest->run_id, "test");
  EXPECT_EQ(manifest->unix_time_s, 1234567);
  EXPECT_EQ(manifest->files[1].xxh3, 0xf1u);

  const Result<RestorePoint> restore = LoadRestorePoint(plan.target);
  ASSERT_TRUE(restore.has_value()) << restore.error();
  EXPECT_EQ(restore->clock, 41);
  EXPECT_EQ(restore->job.SerializeAsString(), SmallJob().SerializeAsString());
  EXPECT_EQ(restore->tensors.size(), 2);
  EXPECT_EQ(static_cast<int>(restore->chunks.size()), cluster.state->shard_map().chunks_size());
  EXPECT_TRUE(std::filesystem::path(restore->directory).is_absolute());
}

TEST_F(CheckpointManifestTest, ATruncatedOrMissingFileIsNamed) {
  ASSERT_TRUE(CommitPlan(plan, *cluster.state, 0).ok());
  const std::string file = plan.target + "/" + plan.files[1].name;
  std::filesystem::resize_file(file, 3);
  const Result<RestorePoint> truncated = LoadRestorePoint(plan.target);
  ASSERT_FALSE(truncated.has_value());
  EXPECT_EQ(truncated.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(truncated.error().message(), HasSubstr(plan.files[1].name));
  EXPECT_THAT(truncated.error().message(), HasSubstr("has 3 bytes, its manifest says 11"));
  std::filesystem::remove(file);
  EXPECT_THAT(LoadRestorePoint(plan.target).error().message(), HasSubstr(plan.files[1].name));
}

TEST_F(CheckpointManifestTest, NoCheckpointAtAll) {
  EXPECT_FALSE(LoadRestorePoint(directory.Path("nothing")).has_value());
}

}  // namespace
}  // namespace slackline::server::coordinator
