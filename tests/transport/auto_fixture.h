// --transport=auto for the conformance suite: as the factory makes it, over TCP's fixture's
// patience.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/tcp_fixture.h"
#include "transport/factory.h"

namespace slackline::transport {

class AutoFixture final : public TcpFixture {
 public:
  explicit AutoFixture(PollMode poll_mode = PollMode::kAdaptive) : poll_mode_(poll_mode) {}

  std::unique_ptr<Endpoint> MakeEndpoint() override {
    return CreateEndpoint("auto", {.poll_mode = poll_mode_}).value();
  }
  std::string ListenAddress() override { return "auto://127.0.0.1:0"; }
  std::vector<std::string> BadAddresses() override {
    return {"",
            ",",
            "auto://",
            "127.0.0.1:80",
            "udp://h:1",
            "tcp://",
            "tcp://h:80x",
            "tcp://127.0.0.1:1,",
            "shm://h:80x",
            "auto://h:1x",
            "udp://h:1,udp://h:2"};
  }
  // The first way in, on one host.
  std::string PeerName(const std::string& address) override {
    return address.substr(0, address.find(','));
  }

 private:
  const PollMode poll_mode_;
};

}  // namespace slackline::transport
