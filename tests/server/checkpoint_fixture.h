// Checkpoints of a shard that a test drives by hand: the writer's thread, its answer, and the
// manifest that a coordinator would write.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/checkpoint/manifest.h"
#include "server/shard.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {

// What ShardThread does: a writer for a shard, and the wait for its end.
class WrittenCheckpoint {
 public:
  WrittenCheckpoint(Shard* shard, const std::string& directory, ShardIndex index, uint32_t shards)
      : shard_(shard) {
    CheckpointWriter::Options options;
    options.checkpoint_id = 1;
    options.shard = index;
    options.directory = directory;
    options.file = ShardFileName(index, shards);
    options.layout.max_watermarks = 16;
    for (uint32_t local = 0; local < shard->chunks()->size(); ++local) {
      const Chunk& chunk = shard->chunks()->at(local);
      options.layout.chunks.push_back({chunk.index, chunk.count});
    }
    for (size_t slot = 0; slot < shard->optimizer()->slot_count(); ++slot) {
      options.layout.slot_names.emplace_back(shard->optimizer()->slot_name(slot));
    }
    writer_ = std::make_unique<CheckpointWriter>(
        std::move(options),
        CheckpointWriter::Callbacks{[this] { Notify(nullptr); },
                                    [this](const CheckpointWriter::Outcome& o) { Notify(&o); }});
  }

  void Begin(Clock clock, bool final) { shard_->BeginCheckpoint(1, clock, final, writer_.get()); }

  // Calls `tick` whenever a buffer came back, until the file is written or given up.
  CheckpointWriter::Outcome Wait(const std::function<void()>& tick) {
    for (;;) {
      tick();
      MutexLock lock(mutex_);
      while (!news_ && !outcome_ && !shard_->checkpointing()) changed_.Wait(lock);
      if (outcome_) return *outcome_;
      news_ = false;
    }
  }

 private:
  void Notify(const CheckpointWriter::Outcome* outcome) {
    MutexLock lock(mutex_);
    news_ = true;
    if (outcome != nullptr) outcome_ = *outcome;
    changed_.NotifyAll();
  }

  Shard* shard_;
  Mutex mutex_;
  CondVar changed_;
  bool news_ = false;
  std::optional<CheckpointWriter::Outcome> outcome_;
  std::unique_ptr<CheckpointWriter> writer_;  // Last: its thread uses the others.
};

inline Manifest ManifestOf(const control::ShardMap& map, Clock clock) {
  Manifest manifest;
  manifest.run_id = "test-run";
  manifest.job = map.job();
  manifest.tensors.assign(map.tensors().begin(), map.tensors().end());
  manifest.chunks.assign(map.chunks().begin(), map.chunks().end());
  manifest.clock = clock;
  manifest.slot_names = *SlotNames(map.job());
  manifest.loss_scales = {{0, 1024}};
  return manifest;
}

// Writes a whole checkpoint of a one-shard job into `directory`.
inline Status WriteCheckpoint(ShardHarness* t, const control::ShardMap& map,
                              const std::string& directory, Clock clock) {
  std::filesystem::create_directories(directory);
  WrittenCheckpoint writing(t->shard.get(), directory, 0, 1);
  writing.Begin(clock, /*final=*/true);
  const CheckpointWriter::Outcome outcome = writing.Wait([t] { t->shard->OnTick(t->time.now); });
  SLACKLINE_RETURN_IF_ERROR(outcome.status);
  Manifest manifest = ManifestOf(map, clock);
  manifest.files = {{outcome.file, outcome.digest.bytes, outcome.digest.xxh3}};
  return WriteManifest(directory, manifest);
}

}  // namespace slackline::server
