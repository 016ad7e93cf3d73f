// Builds batches ahead of the training thread, on a thread of its own with a bounded queue.
//
// Threading: Next(), Recycle() and the destructor belong to the training thread; Stop() to any.
// Ownership: source and builder must outlive the prefetcher. Batches belong to whoever holds the
// pointer; Recycle() gives their memory back for the next one.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/thread_annotations.h"
#include "worker/data/batch.h"
#include "worker/data/sample_source.h"

namespace slackline::worker {

class Prefetcher {
 public:
  static constexpr size_t kBatchesAhead = 4;

  Prefetcher(SampleSource& source, const BatchBuilder& builder);
  // Stops; the source must not be waiting for ever (stop it first).
  ~Prefetcher();

  // Waits for the next batch. Aborted: after Stop() or after the last batch; else the source's or
  // the builder's error.
  Result<std::unique_ptr<Batch>> Next();
  void Recycle(std::unique_ptr<Batch> batch);
  void Stop();

 private:
  void Loop();
  // Waits for room in the queue; null: stop.
  std::unique_ptr<Batch> TakeEmpty();
  Status BuildOne(MicroBatch& samples, Batch& batch);

  SampleSource& source_;
  const BatchBuilder& builder_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<Batch>> ready_ SLACKLINE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Batch>> empty_ SLACKLINE_GUARDED_BY(mutex_);
  Status status_ SLACKLINE_GUARDED_BY(mutex_);  // Why no more batches come.
  bool stopped_ SLACKLINE_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace slackline::worker
