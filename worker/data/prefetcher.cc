#include "worker/data/prefetcher.h"

#include <utility>

namespace slackline::worker {

Prefetcher::Prefetcher(SampleSource& source, const BatchBuilder& builder)
    : source_(source), builder_(builder) {
  thread_ = Thread("data-prefetch", [this] { Loop(); });
}

Prefetcher::~Prefetcher() {
  Stop();
  thread_.Join();
}

void Prefetcher::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

std::unique_ptr<Batch> Prefetcher::TakeEmpty() {
  MutexLock lock(mutex_);
  while (!stopped_ && ready_.size() >= kBatchesAhead) changed_.Wait(lock);
  if (stopped_) return nullptr;
  if (empty_.empty()) return std::make_unique<Batch>();
  std::unique_ptr<Batch> batch = std::move(empty_.back());
  empty_.pop_back();
  return batch;
}

Status Prefetcher::BuildOne(MicroBatch& samples, Batch& batch) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const bool more, source_.Next(samples));
  if (!more) return Aborted("there are no more batches");
  SLACKLINE_RETURN_IF_ERROR(builder_.Fill(samples.samples, batch));
  batch.finished_leases = samples.finished_leases;
  return OkStatus();
}

void Prefetcher::Loop() {
  MicroBatch samples;
  while (std::unique_ptr<Batch> batch = TakeEmpty()) {
    Status status = BuildOne(samples, *batch);
    MutexLock lock(mutex_);
    status_ = std::move(status);
    if (status_.ok()) ready_.push_back(std::move(batch));
    changed_.NotifyAll();
    if (!status_.ok()) return;
  }
}

Result<std::unique_ptr<Batch>> Prefetcher::Next() {
  MutexLock lock(mutex_);
  while (!stopped_ && status_.ok() && ready_.empty()) changed_.Wait(lock);
  if (stopped_) return Err(Aborted("the data source was stopped"));
  if (ready_.empty()) return Err(status_);
  std::unique_ptr<Batch> batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.NotifyAll();
  return batch;
}

void Prefetcher::Recycle(std::unique_ptr<Batch> batch) {
  MutexLock lock(mutex_);
  if (empty_.size() < kBatchesAhead) empty_.push_back(std::move(batch));
}

}  // namespace slackline::worker
