// I/O memory of the RDMA transport: anonymous pages in huge pages where the system has them,
// registered once on every device that has channels.
// Threading: owner thread of the endpoint.
#pragma once

#include <array>
#include <memory>

#include "transport/rdma/rail.h"
#include "transport/rdma/rdma_options.h"
#include "transport/transport.h"

namespace slackline::transport {

class RdmaEndpoint;

class RdmaRegion final : public Region {
 public:
  RdmaRegion(RdmaEndpoint& endpoint, std::unique_ptr<Region> memory);
  // Of memory that another transport allocated and frees later.
  RdmaRegion(RdmaEndpoint& endpoint, MutableBytes memory);
  // Channels that grant part of it to their peers are closed, and report it in the next Poll.
  ~RdmaRegion() override;

  // Harmless when it is registered there.
  Status RegisterOn(const Rail& rail);
  ibv_mr* on(const Rail& rail) const { return registrations_[rail.index()].get(); }

 private:
  RdmaEndpoint& endpoint_;
  std::unique_ptr<Region> memory_;
  std::array<VerbsPtr<ibv_mr>, kMaxRdmaRails> registrations_;
};

}  // namespace slackline::transport
