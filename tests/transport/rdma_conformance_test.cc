#include "tests/transport/rdma_fixture.h"

namespace slackline::transport {
namespace {

std::unique_ptr<TransportFixture> MakeRdma() { return std::make_unique<RdmaFixture>(); }

// No payload travels inside a message: every one is READ or WRITTEN.
std::unique_ptr<TransportFixture> MakeRdmaWithoutEager() {
  RdmaOptions options;
  options.eager_bytes = 0;
  options.poll = PollMode::kSleep;
  return std::make_unique<RdmaFixture>(options);
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportTest,
                         testing::Values(TransportUnderTest{.name = "rdma", .make = MakeRdma}));
INSTANTIATE_TEST_SUITE_P(RdmaWithoutEager, TransportTest,
                         testing::Values(TransportUnderTest{.name = "rdma",
                                                            .make = MakeRdmaWithoutEager}));

}  // namespace
}  // namespace slackline::transport
