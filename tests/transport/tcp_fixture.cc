#include "tests/transport/tcp_fixture.h"

#include "common/time_source.h"

namespace slackline::transport {
namespace {

// Far above what a case needs, also under ThreadSanitizer on a busy machine.
constexpr TimeNs kPatienceNs = 30 * kNsPerSecond;

}  // namespace

std::unique_ptr<Endpoint> TcpFixture::MakeEndpoint() {
  return TcpEndpoint::Create(options_).value();
}

std::string TcpFixture::NobodyAddress() {
  Recorder unused;
  const std::unique_ptr<Endpoint> endpoint = MakeEndpoint();
  endpoint->set_handler(&unused);
  return endpoint->Listen(ListenAddress()).value();
}

std::vector<std::string> TcpFixture::BadAddresses() {
  return {"",
          "tcp://",
          "127.0.0.1:80",
          "udp://127.0.0.1:80",
          "tcp://127.0.0.1",
          "tcp://127.0.0.1:",
          "tcp://127.0.0.1:65536",
          "tcp://127.0.0.1:-1",
          "tcp://127.0.0.1:80x",
          "tcp://:80",
          "tcp://a b:80",
          "tcp://[::1:80",
          "tcp://" + std::string(300, 'a') + ":80"};
}

bool TcpFixture::PumpUntil(const std::vector<Endpoint*>& endpoints,
                           const std::function<bool()>& done) {
  const SteadyTimeSource time;
  const TimeNs deadline_ns = time.NowNs() + kPatienceNs;
  while (!done()) {
    size_t events = 0;
    for (Endpoint* endpoint : endpoints) events += endpoint->Poll(0);
    // Idle: sleep in one reactor, the others have their turn a millisecond later.
    if (events == 0 && !done()) endpoints.front()->Poll(kNsPerMs);
    if (time.NowNs() > deadline_ns) return done();
  }
  return true;
}

}  // namespace slackline::transport
