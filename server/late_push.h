// What SSP and ASP can do about a push whose gradient was taken at older weights than those it is
// applied to.
// Threading: owner thread: the shard's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "server/chunk_store.h"
#include "transport/transport.h"

namespace slackline::server {

// What the learning rate is divided by: max(1, staleness / workers). `staleness` counts the updates
// of the chunk between the reading of its weights and now. With P workers that are equally fast it
// is P - 1, which is no delay worth the name; so only what is beyond shortens the step. (After
// Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, arXiv
// 1511.05950, equation 6, which divides by the staleness itself.)
double StalenessDivisor(uint64_t staleness, size_t workers);

// gradient[i] += lambda * gradient[i]^2 * (weights[i] - backup[i]): a first-order guess of what the
// gradient, taken at `backup`, would be at `weights`, with the outer product of the gradient in
// place of the Hessian, and of that the diagonal. (Zheng et al., "Asynchronous Stochastic Gradient
// Descent with Delay Compensation", ICML 2017, arXiv 1609.08326, equation 10.)
void CompensateDelay(const float* weights, const float* backup, float lambda, size_t count,
                     float* gradient);

// The weights that each worker was given last: w_bak of delay compensation; with a lossy pull
// codec, the master that those were made from. It takes one FP32 copy of the shard's chunks for
// every rank, which is the price of that method.
class WeightBackups {
 public:
  // ResourceExhausted: the memory is not there.
  static Result<std::unique_ptr<WeightBackups>> Create(transport::Endpoint& endpoint,
                                                       const ChunkStore& chunks, uint32_t workers);

  size_t size_bytes() const { return region_->bytes().size(); }
  // The chunk's present weights go to the worker. A rank beyond `workers` is not kept.
  void Keep(const ChunkStore& chunks, uint32_t local, WorkerId worker);
  // What the worker was given as `version`; null if that was not the last it was given.
  const float* Find(uint32_t local, WorkerId worker, uint64_t version) const;

 private:
  struct Backup {
    float* weights = nullptr;
    uint64_t version = 0;
  };
  WeightBackups() = default;

  uint32_t workers_ = 0;
  std::unique_ptr<transport::Region> region_;
  std::vector<Backup> backups_;  // Chunk by chunk, one for each rank.
};

}  // namespace slackline::server
