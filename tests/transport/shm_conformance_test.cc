// The conformance suite over shared memory.
#include "tests/transport/shm_fixture.h"

namespace slackline::transport {
namespace {

std::unique_ptr<TransportFixture> MakeShm() { return std::make_unique<ShmFixture>(); }

std::unique_ptr<TransportFixture> MakeBusyShm() {
  return std::make_unique<ShmFixture>(ShmOptions{.poll_mode = PollMode::kBusy});
}

// Sleeps whenever it can, and copies every payload in many pieces.
std::unique_ptr<TransportFixture> MakePiecemealShm() {
  return std::make_unique<ShmFixture>(
      ShmOptions{.poll_mode = PollMode::kSleep, .pass_bytes = 4000});
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportTest,
                         testing::Values(TransportUnderTest{.name = "shm", .make = MakeShm}));
INSTANTIATE_TEST_SUITE_P(ShmBusy, TransportTest,
                         testing::Values(TransportUnderTest{.name = "shm", .make = MakeBusyShm}));
INSTANTIATE_TEST_SUITE_P(ShmPiecemeal, TransportTest,
                         testing::Values(TransportUnderTest{.name = "shm",
                                                            .make = MakePiecemealShm}));

}  // namespace
}  // namespace slackline::transport
