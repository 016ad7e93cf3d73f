#include "tests/transport/sim_fixture.h"

#include <gmock/gmock.h>

namespace slackline::transport {
namespace {

// In virtual time: far above what a case needs.
constexpr TimeNs kPatienceNs = 60 * kNsPerSecond;

}  // namespace

SimFixture::~SimFixture() { EXPECT_THAT(network_.violations(), testing::IsEmpty()); }

bool SimFixture::PumpUntil(const std::vector<Endpoint*>& endpoints,
                           const std::function<bool()>& done) {
  const TimeNs deadline_ns = network_.NowNs() + kPatienceNs;
  while (!done()) {
    size_t events = 0;
    for (Endpoint* endpoint : endpoints) events += endpoint->Poll(0);
    if (events > 0) continue;
    if (done()) return true;
    if (network_.NowNs() > deadline_ns || !network_.Step()) return done();
  }
  return true;
}

}  // namespace slackline::transport
