// A worker's training data from the directory to the next batch: verified data, the job's order of
// samples (a function of the clock under BSP, data leases otherwise), batches built ahead.
//
// Threading: the training thread's; the threads behind it are its own.
// Ownership: the client must outlive it, and a client that cannot answer must be cancelled before
// the destructor runs, which waits for the lease call under way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/client/client.h"
#include "worker/data/lease_source.h"
#include "worker/data/prefetcher.h"

namespace slackline::worker {

// The data of a directory. Immutable once open; must outlive what reads it.
struct TrainingData {
  DataManifest manifest;
  Dataset train;
  Dataset validation;
};
Result<std::unique_ptr<TrainingData>> OpenTrainingData(const std::string& directory);

class DataPipeline {
 public:
  // After the client's Declare. `builder` is for the training split. `batch` samples a micro-batch,
  // `micro_batches` a clock.
  DataPipeline(const BatchBuilder& builder, Client& client, uint64_t batch, uint32_t micro_batches);
  ~DataPipeline();

  Result<std::unique_ptr<Batch>> Next() { return prefetcher_->Next(); }
  // The batch's forward and backward are done: its memory can be used again.
  void Recycle(std::unique_ptr<Batch> batch);
  // A step was answered: the samples of all recycled batches are in the servers' weights.
  void StepAnswered();

 private:
  class ClientBroker;

  std::unique_ptr<ClientBroker> broker_;
  std::unique_ptr<LeaseSource> leases_;   // SSP, ASP.
  std::unique_ptr<SampleSource> shared_;  // BSP.
  std::vector<uint64_t> finished_leases_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace slackline::worker
