#include "tests/transport/rdma_fixture.h"

#include "common/time_source.h"

namespace slackline::transport {
namespace {

// Far above what a case needs, also in an emulated machine.
constexpr TimeNs kPatienceNs = 60 * kNsPerSecond;

}  // namespace

std::unique_ptr<Endpoint> RdmaFixture::MakeEndpoint() {
  return RdmaEndpoint::Create(options_).value();
}

std::string RdmaFixture::NobodyAddress() {
  Recorder unused;
  const std::unique_ptr<Endpoint> endpoint = MakeEndpoint();
  endpoint->set_handler(&unused);
  return endpoint->Listen(ListenAddress()).value();
}

std::vector<std::string> RdmaFixture::BadAddresses() {
  return {"",
          "rdma://",
          "127.0.0.1:80",
          "tcp://127.0.0.1:80",
          "rdma://127.0.0.1",
          "rdma://127.0.0.1:65536",
          "rdma://127.0.0.1:80x",
          "rdma://:80",
          "rdma://[::1:80"};
}

bool RdmaFixture::PumpUntil(const std::vector<Endpoint*>& endpoints,
                            const std::function<bool()>& done) {
  const SteadyTimeSource time;
  const TimeNs deadline_ns = time.NowNs() + kPatienceNs;
  while (!done()) {
    size_t events = 0;
    for (Endpoint* endpoint : endpoints) events += endpoint->Poll(0);
    // Idle: sleep in one of them, the others have their turn a little later.
    constexpr TimeNs kNapNs = 200'000;
    if (events == 0 && !done()) endpoints.front()->Poll(kNapNs);
    if (time.NowNs() > deadline_ns) return done();
  }
  return true;
}

}  // namespace slackline::transport
