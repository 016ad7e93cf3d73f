#include "transport/rdma/memory.h"

#include <algorithm>
#include <utility>

#include "transport/mapped_region.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {

RdmaRegion::RdmaRegion(RdmaEndpoint& endpoint, std::unique_ptr<Region> memory)
    : Region(memory->bytes()), endpoint_(endpoint), memory_(std::move(memory)) {}

RdmaRegion::RdmaRegion(RdmaEndpoint& endpoint, MutableBytes memory)
    : Region(memory), endpoint_(endpoint) {}

RdmaRegion::~RdmaRegion() { endpoint_.ForgetRegion(*this); }

Status RdmaRegion::RegisterOn(const Rail& rail) {
  VerbsPtr<ibv_mr>& registration = registrations_[rail.index()];
  if (registration) return OkStatus();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(registration, rail.Register(bytes_, /*granted=*/true));
  return OkStatus();
}

Result<std::unique_ptr<Region>> RdmaEndpoint::Allocate(size_t size_bytes) {
  SLACKLINE_ASSIGN_OR_RETURN(
      std::unique_ptr<Region> memory,
      MappedRegion::Create(size_bytes, options_.max_region_bytes, &region_bytes_));
  auto region = std::make_unique<RdmaRegion>(*this, std::move(memory));
  NoteRegion(*region);
  for (const auto& rail : rails_) {
    if (rail->started()) SLACKLINE_RETURN_ERR_IF_ERROR(region->RegisterOn(*rail));
  }
  return region;
}

Status RdmaEndpoint::Attach(MutableBytes bytes) {
  auto region = std::make_unique<RdmaRegion>(*this, bytes);
  NoteRegion(*region);
  for (const auto& rail : rails_) {
    if (rail->started()) SLACKLINE_RETURN_IF_ERROR(region->RegisterOn(*rail));
  }
  attached_.push_back(std::move(region));
  return OkStatus();
}

void RdmaEndpoint::Detach(MutableBytes bytes) {
  std::erase_if(attached_,
                [&](const auto& region) { return region->bytes().data() == bytes.data(); });
}

void RdmaEndpoint::NoteRegion(RdmaRegion& region) {
  const auto place = std::upper_bound(regions_.begin(), regions_.end(), &region,
                                      [](const RdmaRegion* a, const RdmaRegion* b) {
                                        return a->bytes().data() < b->bytes().data();
                                      });
  regions_.insert(place, &region);
}

void RdmaEndpoint::ForgetRegion(const RdmaRegion& region) {
  std::erase(regions_, &region);
  // A region that is granted cannot be deregistered; its owner frees it, so nobody may touch it.
  for (const auto& channel : channels_) {
    if (channel->rail() == nullptr) continue;
    const ibv_mr* registration = region.on(*channel->rail());
    if (registration == nullptr || !channel->Grants(registration)) continue;
    channel->FailLater(
        Aborted("memory of an open request to " + std::string(channel->peer()) + " was freed"));
  }
}

const RdmaRegion* RdmaEndpoint::FindRegion(ConstBytes memory) const {
  const auto above = std::upper_bound(regions_.begin(), regions_.end(), memory.data(),
                                      [](const std::byte* data, const RdmaRegion* region) {
                                        return data < region->bytes().data();
                                      });
  if (above == regions_.begin()) return nullptr;
  const RdmaRegion* region = *(above - 1);
  const auto offset = static_cast<size_t>(memory.data() - region->bytes().data());
  const size_t size = region->bytes().size();
  return offset <= size && memory.size() <= size - offset ? region : nullptr;
}

}  // namespace slackline::transport
