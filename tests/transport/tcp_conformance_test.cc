#include "tests/transport/tcp_fixture.h"

namespace slackline::transport {
namespace {

std::unique_ptr<TransportFixture> MakeTcp() { return std::make_unique<TcpFixture>(); }

// Sockets that hold next to nothing and passes of a few bytes: every message is read and written in
// many pieces, and channels wait for each other all the time.
std::unique_ptr<TransportFixture> MakePiecemealTcp() {
  TcpOptions options;
  options.socket = {.send_buffer_bytes = 4096, .receive_buffer_bytes = 4096};
  options.pass_bytes = 1000;
  return std::make_unique<TcpFixture>(options);
}

// A link that every message has to wait for.
std::unique_ptr<TransportFixture> MakeThrottledTcp() {
  TcpOptions options;
  options.link_gbps = 1;
  return std::make_unique<TcpFixture>(options);
}

INSTANTIATE_TEST_SUITE_P(TcpThrottled, TransportTest,
                         testing::Values(TransportUnderTest{.name = "tcp",
                                                            .make = MakeThrottledTcp}));
INSTANTIATE_TEST_SUITE_P(Tcp, TransportTest,
                         testing::Values(TransportUnderTest{.name = "tcp", .make = MakeTcp}));
INSTANTIATE_TEST_SUITE_P(TcpPiecemeal, TransportTest,
                         testing::Values(TransportUnderTest{.name = "tcp",
                                                            .make = MakePiecemealTcp}));

}  // namespace
}  // namespace slackline::transport
