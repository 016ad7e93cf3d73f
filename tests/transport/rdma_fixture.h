// The RDMA transport for the conformance suite and its own tests: a verbs device of this host, on
// which both ends meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/conformance.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {

class RdmaFixture : public TransportFixture {
 public:
  RdmaFixture() = default;
  explicit RdmaFixture(const RdmaOptions& options) : options_(options) {}

  std::unique_ptr<Endpoint> MakeEndpoint() override;
  std::string ListenAddress() override { return "rdma://127.0.0.1:0"; }
  // A port that was free a moment ago.
  std::string NobodyAddress() override;
  std::vector<std::string> BadAddresses() override;
  size_t MaxCopiedPayloadBytes() override { return options_.eager_bytes; }
  bool PumpUntil(const std::vector<Endpoint*>& endpoints,
                 const std::function<bool()>& done) override;

 private:
  RdmaOptions options_;
};

}  // namespace slackline::transport
