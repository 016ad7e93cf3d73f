// Checkpoints from a running shard to disk and back, and every way in which that must not go wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "common/file.h"
#include "common/safetensors.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/merge.h"
#include "server/checkpoint/restore.h"
#include "tests/server/checkpoint_fixture.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

  const std::string root_ = testing::TempDir() + "slackline_checkpoint_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

control::JobSpec AdamJob(int staleness) {
  control::JobSpec job = TestJob(staleness);
  job.set_model("toy");
  job.set_model_config_json("{\"width\": 3}");
  job.mutable_optimizer()->set_name("adam");
  job.mutable_schedule()->set_learning_rate(0.1);
  return job;
}

// Trains clocks [begin, end) of one worker with gradients that depend on the clock and the weights.
void Train(ShardHarness* t, const control::ShardMap& map, ShardIndex shard, Clock begin,
           Clock end) {
  for (Clock clock = begin; clock < end; ++clock) {
    for (const control::Chunk& chunk : map.chunks()) {
      if (chunk.shard() != shard) continue;
      std::vector<float> gradient = t->Weights(chunk.index());
      for (float& value : gradient) value = 0.3f * value + 0.01f * static_cast<float>(clock + 1);
      t->PushPull(0, chunk.index(), clock, gradient);
    }
    t->SendAll();
    t->shard->OnTick(t->time.now);
  }
}

// Runs the checkpoint until its file is written, as a shard's thread would.
CheckpointWriter::Outcome Take(
    ShardHarness* t, const std::string& directory, const std::function<void()>& meanwhile = [] {},
    Clock clock = 0, bool final = true) {
  WrittenCheckpoint writing(t->shard.get(), directory, 0, 1);
  writing.Begin(clock, final);
  meanwhile();
  return writing.Wait([t] { t->shard->OnTick(t->time.now); });
}

TEST_F(CheckpointTest, ResumesBitwiseOnAnyNumberOfShards) {
  const control::JobSpec job = AdamJob(0);
  const std::vector<size_t> counts{5, 7, 64, 3, 130};
  const control::ShardMap one_shard = TestMap(job, counts);
  ShardHarness before(one_shard, 1);
  before.InitAll(1);
  Train(&before, one_shard, 0, 0, 10);
  const std::string directory = Path(CheckpointName(9));
  ASSERT_TRUE(WriteCheckpoint(&before, one_shard, directory, 9).ok());
  Train(&before, one_shard, 0, 10, 20);

  for (uint32_t shards : {1u, 2u, 3u}) {
    control::ShardMap map = one_shard;
    map.set_first_clock(10);
    map.set_restore_from(directory);
    for (control::Chunk& chunk : *map.mutable_chunks()) chunk.set_shard(chunk.index() % shards);
    for (ShardIndex shard = 0; shard < shards; ++shard) {
      ShardOptions options;
      options.shard = shard;
      ShardHarness after(map, 1, options, /*first_clock=*/10);
      ASSERT_TRUE(after.install_status.ok()) << after.install_status;
      const Status restored = RestoreShard(directory, map, shard, after.shard.get());
      ASSERT_TRUE(restored.ok()) << restored;
      EXPECT_TRUE(after.shard->initialised());
      Train(&after, map, shard, 10, 20);
      for (const control::Chunk& chunk : map.chunks()) {
        if (chunk.shard() != shard) continue;
        EXPECT_EQ(after.Weights(chunk.index()), before.Weights(chunk.index()))
            << shards << " shards, chunk " << chunk.index();
      }
    }
  }
}

TEST_F(CheckpointTest, BspCutsExactlyAfterTheClockWhileTrainingGoesOn) {
  const control::ShardMap map = TestMap(AdamJob(0), std::vector<size_t>(12, 4));
  ShardOptions options;
  options.receive_slots = 32;  // All pushes that must wait can be held.
  ShardHarness t(map, 1, options);
  t.InitAll(1);
  Train(&t, map, 0, 0, 3);
  std::vector<std::vector<float>> at_cut;
  const CheckpointWriter::Outcome outcome = Take(
      &t, root_,
      [&] {
        // Twelve chunks, four buffers: the round after the cut must wait for some of them.
        Train(&t, map, 0, 3, 6);
        for (const control::Chunk& chunk : map.chunks()) at_cut.push_back(t.Weights(chunk.index()));
        Train(&t, map, 0, 6, 7);
      },
      /*clock=*/5, /*final=*/false);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  t.SendAll();
  const Result<ShardFileReader> file = ShardFileReader::Open(Path(outcome.file));
  ASSERT_TRUE(file.has_value()) << file.error();
  for (const control::Chunk& chunk : map.chunks()) {
    std::vector<float> data(3 * chunk.count());
    const Result<ChunkState> state = file->ReadChunk(
        chunk.index(), chunk.count(), {"first_moment", "second_moment"}, data.data());
    ASSERT_TRUE(state.has_value()) << state.error();
    data.resize(chunk.count());
    EXPECT_EQ(data, at_cut[chunk.index()]);
    EXPECT_EQ(state->steps, 6u);
    ASSERT_EQ(state->watermarks.size(), 1u);
    EXPECT_EQ(state->watermarks[0].clock, 5);
  }
  // What had to wait was not lost: everything of clock 6 is in.
  for (uint32_t local = 0; local < t.shard->chunks()->size(); ++local) {
    EXPECT_EQ(t.shard->chunks()->at(local).steps, 7u);
  }
}

TEST_F(CheckpointTest, ACommandThatComesTooLateSaysSo) {
  const control::ShardMap map = TestMap(AdamJob(0), {4});
  ShardHarness t(map, 1);
  t.InitAll(1);
  Train(&t, map, 0, 0, 5);
  const CheckpointWriter::Outcome outcome = Take(
      &t, root_, [] {}, /*clock=*/2, /*final=*/false);
  EXPECT_EQ(outcome.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(outcome.status.message(), HasSubstr("past clock 2"));
  EXPECT_FALSE(fs::exists(Path(outcome.file)));
}

TEST_F(CheckpointTest, AnOvertakenOneIsAborted) {
  const control::ShardMap map = TestMap(AdamJob(0), {4});
  ShardHarness t(map, 1);
  t.InitAll(1);
  WrittenCheckpoint never(t.shard.get(), root_, 0, 1);
  never.Begin(/*clock=*/100, /*final=*/false);
  const std::string other = Path("other");
  fs::create_directories(other);
  EXPECT_TRUE(Take(&t, other).status.ok());
  EXPECT_EQ(never.Wait([] {}).status.code(), StatusCode::kAborted);
}

TEST_F(CheckpointTest, AspCutsAtOnce) {
  const control::ShardMap map = TestMap(AdamJob(-1), {4, 4});
  ShardHarness t(map, 1);
  t.InitAll(1);
  Train(&t, map, 0, 0, 3);
  const std::vector<float> at_cut = t.Weights(1);
  const CheckpointWriter::Outcome outcome = Take(
      &t, root_, [&] { Train(&t, map, 0, 3, 4); }, /*clock=*/2, /*final=*/false);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const Result<ShardFileReader> file = ShardFileReader::Open(Path(outcome.file));
  ASSERT_TRUE(file.has_value()) << file.error();
  std::vector<float> data(12);
  ASSERT_TRUE(file->ReadChunk(1, 4, {"first_moment", "second_moment"}, data.data()).has_value());
  data.resize(4);
  EXPECT_EQ(data, at_cut);
}

TEST_F(CheckpointTest, AShardWithoutChunksTakesPart) {
  for (const bool deterministic : {false, true}) {
    control::ShardMap map = TestMap(AdamJob(0), {4});
    map.mutable_job()->set_deterministic(deterministic);
    map.mutable_chunks(0)->set_shard(1);
    ShardHarness t(map, 1);
    ASSERT_TRUE(t.install_status.ok()) << t.install_status;
    EXPECT_TRUE(t.shard->initialised());
    EXPECT_EQ(t.shard->Report().epoch(), 1u);
    EXPECT_EQ(t.shard->Report().view_version(), 1u);
    EXPECT_EQ(t.shard->Report().min_clock(), kNoClock);
    const uint64_t id = t.PushPull(0, 0, 0, {1, 2, 3, 4});
    EXPECT_EQ(t.ReplyTo(0, id)->header.status, proto::ReplyStatus::kMalformed);
    const CheckpointWriter::Outcome outcome = Take(&t, root_);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_TRUE(ShardFileReader::Open(Path(outcome.file)).has_value());
    ASSERT_TRUE(t.shard->InstallView(TestView(2, {})).ok());
    EXPECT_EQ(t.shard->Report().view_version(), 2u);
  }
}

TEST_F(CheckpointTest, AMissingDirectoryIsAnErrorAndTrainingGoesOn) {
  const control::ShardMap map = TestMap(AdamJob(0), std::vector<size_t>(12, 4));
  ShardHarness t(map, 1);
  t.InitAll(1);
  const CheckpointWriter::Outcome outcome = Take(&t, Path("nowhere"));
  EXPECT_EQ(outcome.status.code(), StatusCode::kNotFound);
  EXPECT_THAT(outcome.status.message(), HasSubstr("nowhere"));
  Train(&t, map, 0, 0, 1);
  EXPECT_EQ(t.shard->chunks()->at(11).steps, 1u);
}

TEST_F(CheckpointTest, DamageIsNamed) {
  const control::ShardMap map = TestMap(AdamJob(0), {64, 64});
  ShardHarness t(map, 1);
  t.InitAll(1);
  ASSERT_TRUE(WriteCheckpoint(&t, map, root_, 0).ok());
  const std::string file = Path(ShardFileName(0, 1));
  const auto size = fs::file_size(file);
  auto damage = [&](uintmax_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 1));
  };
  auto restore = [&] {
    ShardHarness after(map, 1);
    const Status status = RestoreShard(root_, map, 0, after.shard.get());
    EXPECT_FALSE(after.shard->initialised() && !status.ok()) << "a chunk changed";
    return status;
  };
  EXPECT_TRUE(restore().ok());
  damage(size - 1);  // Of the last chunk's last slot.
  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);
  EXPECT_THAT(restore().message(), AllOf(HasSubstr(file), HasSubstr("chunk 1")));
  EXPECT_EQ(MergeCheckpoint(root_, Path("out.safetensors")).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(Path("out.safetensors")));
  damage(size - 1);
  damage(12);  // Of the header.
  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);
  EXPECT_THAT(restore().message(), HasSubstr(file));
  damage(12);
  fs::resize_file(file, size - 4);
  EXPECT_EQ(restore().code(), StatusCode::kDataLoss);
  fs::remove(file);
  EXPECT_EQ(restore().code(), StatusCode::kNotFound);
  EXPECT_THAT(restore().message(), HasSubstr(file));
}

TEST_F(CheckpointTest, AnotherModelOrOptimizerIsRefused) {
  const control::ShardMap map = TestMap(AdamJob(0), {8, 8});
  ShardHarness t(map, 1);
  t.InitAll(1);
  ASSERT_TRUE(WriteCheckpoint(&t, map, root_, 0).ok());
  auto restore = [&](const control::ShardMap& other) {
    ShardHarness after(other, 1);
    const Status status = RestoreShard(root_, other, 0, after.shard.get());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  control::ShardMap other = map;
  other.mutable_tensors(1)->set_name("other");
  EXPECT_THAT(restore(other), HasSubstr("tensor 1 is 't1', the job has 'other'"));
  other = map;
  other.mutable_tensors(0)->set_shape(0, 4);
  EXPECT_THAT(restore(other), HasSubstr("another shape"));
  EXPECT_THAT(restore(TestMap(AdamJob(0), {8})), HasSubstr("2 tensors"));
  other = map;
  other.mutable_job()->mutable_optimizer()->set_name("momentum");
  EXPECT_THAT(restore(other), HasSubstr("'adam'"));
}

TEST_F(CheckpointTest, MergesIntoOneFileWithTheModelsNames) {
  const control::ShardMap map = TestMap(AdamJob(0), {5, 7, 3});
  ShardHarness t(map, 1);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    std::vector<float> values(map.chunks(static_cast<int>(chunk)).count());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(100 * chunk + i);
    t.Init(chunk, values);
  }
  ASSERT_TRUE(WriteCheckpoint(&t, map, root_, 41).ok());
  const std::string output = Path("model.safetensors");
  const Status merged = MergeCheckpoint(root_, output);
  ASSERT_TRUE(merged.ok()) << merged;
  const Result<SafetensorsReader> reader = SafetensorsReader::Open(output);
  ASSERT_TRUE(reader.has_value()) << reader.error();
  ASSERT_EQ(reader->tensors().size(), 3u);
  std::vector<float> values(7);
  ASSERT_TRUE(reader->CopyFloats("t1", values).ok());
  EXPECT_THAT(values, testing::ElementsAre(100, 101, 102, 103, 104, 105, 106));
  EXPECT_EQ(reader->metadata().at("model_config"), "{\"width\": 3}");
  EXPECT_EQ(reader->metadata().at("clock"), "41");
}

}  // namespace
}  // namespace slackline::server
