#include "server/late_push.h"

#include <algorithm>

namespace slackline::server {

double StalenessDivisor(uint64_t staleness, size_t workers) {
  return std::max(1.0, static_cast<double>(staleness) / static_cast<double>(workers));
}

void CompensateDelay(const float* weights, const float* backup, float lambda, size_t count,
                     float* gradient) {
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    gradient[i] = g + lambda * g * g * (weights[i] - backup[i]);
  }
}

Result<std::unique_ptr<WeightBackups>> WeightBackups::Create(transport::Endpoint& endpoint,
                                                             const ChunkStore& chunks,
                                                             uint32_t workers) {
  std::unique_ptr<WeightBackups> self(new WeightBackups());
  self->workers_ = workers;
  size_t floats = 0;
  for (uint32_t local = 0; local < chunks.size(); ++local) floats += chunks.at(local).count;
  const size_t bytes = std::max<size_t>(floats * workers, 1) * sizeof(float);
  SLACKLINE_ASSIGN_OR_RETURN(self->region_, endpoint.Allocate(bytes));
  float* next = reinterpret_cast<float*>(self->region_->bytes().data());
  for (uint32_t local = 0; local < chunks.size(); ++local) {
    for (uint32_t worker = 0; worker < workers; ++worker) {
      self->backups_.push_back({.weights = next});
      next += chunks.at(local).count;
    }
  }
  return self;
}

void WeightBackups::Keep(const ChunkStore& chunks, uint32_t local, WorkerId worker) {
  if (worker >= workers_) return;
  const Chunk& chunk = chunks.at(local);
  Backup& backup = backups_[size_t{local} * workers_ + worker];
  std::copy_n(chunk.master, chunk.count, backup.weights);
  backup.version = chunk.version;
}

const float* WeightBackups::Find(uint32_t local, WorkerId worker, uint64_t version) const {
  if (worker >= workers_) return nullptr;
  const Backup& backup = backups_[size_t{local} * workers_ + worker];
  return backup.version == version && version > 0 ? backup.weights : nullptr;
}

}  // namespace slackline::server
