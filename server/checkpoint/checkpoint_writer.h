// Writes one shard's file of one checkpoint on a thread of its own, while the shard goes on.
//
// The shard copies a chunk into one of a few buffers and hands it over; the thread writes it and
// gives the buffer back. A slow disk therefore holds up the shard's remaining cuts, never memory.
// Threading: the sink's methods and the destructor: the shard's thread. Callbacks: the writer's
// thread, except that on_done runs once whatever happens.
// Errors: reported in the Outcome, with the path; a file that failed is removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/file.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "server/checkpoint/chunk_cut.h"
#include "server/checkpoint/shard_file.h"

namespace slackline::server {

// Copies that may wait for the disk: enough to keep it busy while the shard works on requests.
inline constexpr size_t kCheckpointBuffers = 4;

class CheckpointWriter final : public CheckpointSink {
 public:
  struct Options {
    uint64_t checkpoint_id = 0;
    ShardIndex shard = 0;
    std::string directory;  // Exists.
    std::string file;       // Name inside it.
    ShardFileLayout layout;
  };
  struct Outcome {
    uint64_t checkpoint_id = 0;
    ShardIndex shard = 0;
    std::string file;
    Status status;
    FileDigest digest;  // Valid if the status is OK: written and synced.
  };
  struct Callbacks {
    std::function<void()> on_buffer_free;  // The shard's OnTick may go on.
    std::function<void(const Outcome&)> on_done;
  };

  CheckpointWriter(Options options, Callbacks callbacks);
  // Gives up what is not finished and joins.
  ~CheckpointWriter() override;

  float* AcquireBuffer() override;
  void Submit(ChunkCut cut) override;
  void Finish(const Status& status) override;

  // on_done has returned: the writer may be destroyed without waiting.
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  void Run();
  Result<FileDigest> WriteFile();
  Status WriteChunks(ShardFileWriter* writer);
  // The next cut; nullopt once the shard has finished and nothing is left.
  std::optional<ChunkCut> NextCut();
  void ReturnBuffer(float* buffer);

  const Options options_;
  const Callbacks callbacks_;
  std::vector<std::unique_ptr<float[]>> buffers_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<float*> free_ SLACKLINE_GUARDED_BY(mutex_);
  std::vector<ChunkCut> queue_ SLACKLINE_GUARDED_BY(mutex_);  // At most one a buffer.
  std::optional<Status> finished_ SLACKLINE_GUARDED_BY(mutex_);

  std::atomic<bool> done_{false};
  Thread thread_;  // Last: it uses the others.
};

}  // namespace slackline::server
