#include "server/checkpoint/checkpoint_writer.h"

#include <unistd.h>

#include <algorithm>

namespace slackline::server {

CheckpointWriter::CheckpointWriter(Options options, Callbacks callbacks)
    : options_(std::move(options)), callbacks_(std::move(callbacks)) {
  size_t floats = 0;
  for (const ShardFileLayout::ChunkShape& chunk : options_.layout.chunks) {
    floats = std::max(floats, (1 + options_.layout.slot_names.size()) * chunk.count);
  }
  for (size_t i = 0; i < kCheckpointBuffers; ++i) {
    buffers_.push_back(std::make_unique_for_overwrite<float[]>(floats));
    free_.push_back(buffers_.back().get());
  }
  thread_ = Thread("ckpt-" + std::to_string(options_.shard), [this] { Run(); });
}

CheckpointWriter::~CheckpointWriter() {
  bool finished = false;
  {
    MutexLock lock(mutex_);
    finished = finished_.has_value();
  }
  if (!finished) Finish(Aborted("the shard ended before the checkpoint was complete"));
  thread_.Join();
}

float* CheckpointWriter::AcquireBuffer() {
  MutexLock lock(mutex_);
  if (free_.empty()) return nullptr;
  float* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void CheckpointWriter::Submit(ChunkCut cut) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(cut));
  changed_.NotifyOne();
}

void CheckpointWriter::Finish(const Status& status) {
  MutexLock lock(mutex_);
  finished_ = status;
  changed_.NotifyOne();
}

std::optional<ChunkCut> CheckpointWriter::NextCut() {
  MutexLock lock(mutex_);
  while (queue_.empty() && !finished_) changed_.Wait(lock);
  if (queue_.empty()) return std::nullopt;
  ChunkCut cut = std::move(queue_.front());
  queue_.erase(queue_.begin());
  return cut;
}

void CheckpointWriter::ReturnBuffer(float* buffer) {
  {
    MutexLock lock(mutex_);
    free_.push_back(buffer);
  }
  callbacks_.on_buffer_free();
}

void CheckpointWriter::Run() {
  Outcome outcome{options_.checkpoint_id, options_.shard, options_.file, {}, {}};
  const Result<FileDigest> digest = WriteFile();
  if (digest) {
    outcome.digest = *digest;
  } else {
    outcome.status = digest.error();
    unlink((options_.directory + "/" + options_.file).c_str());
  }
  callbacks_.on_done(outcome);
  done_.store(true, std::memory_order_release);  // Pairs with done(): the outcome is out.
}

Result<FileDigest> CheckpointWriter::WriteFile() {
  Result<ShardFileWriter> writer =
      ShardFileWriter::Create(options_.directory + "/" + options_.file, options_.layout);
  // Cuts are taken, and their buffers given back, even if there is no file to write them to: the
  // shard must not wait for them.
  const Status written = WriteChunks(writer ? &*writer : nullptr);
  if (!writer) return Err(writer.error());
  SLACKLINE_RETURN_ERR_IF_ERROR(written);
  return writer->Finish();
}

Status CheckpointWriter::WriteChunks(ShardFileWriter* writer) {
  Status status;
  while (std::optional<ChunkCut> cut = NextCut()) {
    if (writer != nullptr && status.ok()) status = writer->WriteChunk(*cut);
    ReturnBuffer(cut->data);
  }
  MutexLock lock(mutex_);
  // What stopped the shard explains a gap better than the gap does.
  return finished_->ok() ? status : *finished_;
}

}  // namespace slackline::server
