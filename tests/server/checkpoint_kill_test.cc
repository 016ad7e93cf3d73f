// A writer that is killed at any moment leaves the checkpoint before it usable.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "common/random.h"
#include "common/time_source.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/restore.h"
#include "tests/server/checkpoint_fixture.h"

namespace slackline::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCount = 40'000;  // A chunk's elements: a few writes a file.

control::ShardMap KillMap() { return TestMap(TestJob(0), {kCount, kCount, kCount}); }

// Checkpoint c holds c in every weight.
Status WriteOne(const std::string& root, Clock clock) {
  ShardHarness t(KillMap(), 1);
  t.InitAll(static_cast<float>(clock));
  const std::string temporary = root + "/.tmp-1";
  fs::remove_all(temporary);
  SLACKLINE_RETURN_IF_ERROR(WriteCheckpoint(&t, KillMap(), temporary, clock));
  return PublishCheckpoint(temporary, root + "/" + CheckpointName(clock));
}

// Runs in a child until it is killed.
[[noreturn]] void WriteForEver(const std::string& root, Clock first) {
  for (Clock clock = first;; ++clock) {
    if (!WriteOne(root, clock).ok()) _exit(3);
  }
}

TEST(CheckpointKill, ThePreviousOneStaysUsable) {
  constexpr int kKills = 40;
  const std::string root = testing::TempDir() + "slackline_checkpoint_kill";
  fs::remove_all(root);
  fs::create_directories(root);
  Rng random(7);
  // The moments of the kills are spread over two checkpoints, however fast this disk is.
  const SteadyTimeSource time;
  const TimeNs begin = time.NowNs();
  ASSERT_TRUE(WriteOne(root, 0).ok());
  const auto window_us = static_cast<uint64_t>((time.NowNs() - begin) / 1000 * 2);
  Clock last = 0;
  int interrupted = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteForEver(root, last + 1);
    usleep(static_cast<useconds_t>(random.Below(window_us)));  // Not a wait for anything.
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed with " << WEXITSTATUS(status);
    interrupted += fs::exists(root + "/.tmp-1");

    const Result<std::string> latest = FindLatestCheckpoint(root);
    ASSERT_TRUE(latest.has_value()) << latest.error();
    const Result<Manifest> manifest = ReadManifest(*latest);
    ASSERT_TRUE(manifest.has_value()) << manifest.error();
    ASSERT_GE(manifest->clock, last);
    last = manifest->clock;
    ShardHarness after(KillMap(), 1);
    const Status restored = RestoreShard(*latest, KillMap(), 0, after.shard.get());
    ASSERT_TRUE(restored.ok()) << restored;
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      ASSERT_EQ(after.Weights(chunk), std::vector<float>(kCount, static_cast<float>(last)));
    }
    ASSERT_TRUE(RemoveLeftovers(root).ok());
  }
  // Otherwise nothing was tested.
  EXPECT_GT(interrupted, 0);
  EXPECT_GT(last, 0);
  fs::remove_all(root);
}

}  // namespace
}  // namespace slackline::server
