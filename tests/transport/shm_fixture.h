// The shared-memory transport for the conformance suite and its own tests: both ends in one
// process, each with its own mapping of everything; the patience is TCP's fixture's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/tcp_fixture.h"
#include "transport/shm/shm_endpoint.h"

namespace slackline::transport {

class ShmFixture final : public TcpFixture {
 public:
  explicit ShmFixture(const ShmOptions& options = {}) : options_(options) {}

  std::unique_ptr<Endpoint> MakeEndpoint() override {
    return ShmEndpoint::Create(options_).value();
  }
  std::string ListenAddress() override { return "shm://127.0.0.1:0"; }
  std::vector<std::string> BadAddresses() override {
    return {"",
            "shm://",
            "127.0.0.1:80",
            "tcp://127.0.0.1:80",
            "shm://127.0.0.1",
            "shm://127.0.0.1:65536",
            "shm://127.0.0.1:80x",
            "shm://a b:80",
            "shm://" + std::string(200, 'a') + ":80"};
  }

 private:
  const ShmOptions options_;
};

}  // namespace slackline::transport
