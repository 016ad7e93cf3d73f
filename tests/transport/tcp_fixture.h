// The TCP transport for the conformance suite and its own tests: loopback, real time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/conformance.h"
#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {

class TcpFixture : public TransportFixture {
 public:
  TcpFixture() = default;
  explicit TcpFixture(const TcpOptions& options) : options_(options) {}

  std::unique_ptr<Endpoint> MakeEndpoint() override;
  std::string ListenAddress() override { return "tcp://127.0.0.1:0"; }
  // A port that was free a moment ago.
  std::string NobodyAddress() override;
  std::vector<std::string> BadAddresses() override;
  bool PumpUntil(const std::vector<Endpoint*>& endpoints,
                 const std::function<bool()>& done) override;

 private:
  TcpOptions options_;
};

}  // namespace slackline::transport
