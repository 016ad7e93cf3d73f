#include "tests/transport/tcp_fixture.h"

namespace slackline::transport {
namespace {

std::unique_ptr<TransportFixture> MakeTcp() { return std::make_unique<TcpFixture>(); }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportTest,
                         testing::Values(TransportUnderTest{.name = "tcp", .make = MakeTcp}));

}  // namespace
}  // namespace slackline::transport
