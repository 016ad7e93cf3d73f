// The simulated transport for the conformance suite and its own tests: virtual time, no faults
// unless asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/conformance.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"

namespace slackline::transport {

class SimFixture final : public TransportFixture {
 public:
  SimFixture() = default;
  explicit SimFixture(uint64_t seed, const SimFaults& faults = {}) : network_(seed, faults) {}
  ~SimFixture() override;

  std::unique_ptr<Endpoint> MakeEndpoint() override {
    return network_.CreateEndpoint("process" + std::to_string(++endpoints_));
  }
  std::string ListenAddress() override { return "sim://host:0"; }
  std::string NobodyAddress() override { return "sim://host:1"; }
  std::vector<std::string> BadAddresses() override {
    return {"", "sim://", "host:1", "tcp://host:1", "sim://host", "sim://host:", "sim://host:1x"};
  }
  bool PumpUntil(const std::vector<Endpoint*>& endpoints,
                 const std::function<bool()>& done) override;
  SimNetwork& network() { return network_; }

 private:
  SimNetwork network_{1};
  int endpoints_ = 0;
};

}  // namespace slackline::transport
