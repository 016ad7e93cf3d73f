#include "worker/trainer/data_pipeline.h"

#include <utility>

namespace slackline::worker {

class DataPipeline::ClientBroker final : public LeaseBroker {
 public:
  explicit ClientBroker(Client& client) : client_(client) {}
  Result<control::DataLease> Lease(uint32_t count) override { return client_.LeaseData(count); }
  Status Finish(const std::vector<uint64_t>& ids) override { return client_.FinishData(ids); }

 private:
  Client& client_;
};

Result<std::unique_ptr<TrainingData>> OpenTrainingData(const std::string& directory) {
  auto data = std::make_unique<TrainingData>();
  SLACKLINE_ASSIGN_OR_RETURN(data->manifest, ReadManifest(directory));
  SLACKLINE_ASSIGN_OR_RETURN(data->train, Dataset::Open(directory, data->manifest, "train"));
  SLACKLINE_ASSIGN_OR_RETURN(data->validation,
                             Dataset::Open(directory, data->manifest, "validation"));
  return data;
}

DataPipeline::DataPipeline(const BatchBuilder& builder, Client& client, uint64_t batch,
                           uint32_t micro_batches) {
  SampleOrder order(builder.samples(), client.job().seed());
  SampleSource* source = nullptr;
  if (client.job().staleness() == 0) {
    SharedOrder share;
    share.first_clock = client.first_clock();
    share.end_clock = client.job().steps();
    share.rank = client.rank();
    share.workers = client.expected_workers();
    share.micro_batches = micro_batches;
    share.batch = batch;
    shared_ = std::make_unique<BspSource>(std::move(order), share);
    source = shared_.get();
  } else {
    broker_ = std::make_unique<ClientBroker>(client);
    leases_ = std::make_unique<LeaseSource>(std::move(order), batch, *broker_);
    source = leases_.get();
  }
  prefetcher_ = std::make_unique<Prefetcher>(*source, builder);
}

DataPipeline::~DataPipeline() {
  // The prefetch thread may wait for a lease.
  if (leases_) leases_->Stop();
}

void DataPipeline::Recycle(std::unique_ptr<Batch> batch) {
  finished_leases_.insert(finished_leases_.end(), batch->finished_leases.begin(),
                          batch->finished_leases.end());
  prefetcher_->Recycle(std::move(batch));
}

void DataPipeline::StepAnswered() {
  if (leases_) leases_->Finish(finished_leases_);
  finished_leases_.clear();
}

}  // namespace slackline::worker
