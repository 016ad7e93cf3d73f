// The conformance suite over the simulated transport.
#include "tests/transport/conformance.h"
#include "tests/transport/sim_fixture.h"

namespace slackline::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Sim, TransportTest,
                         testing::Values(TransportUnderTest{
                             "sim", []() -> std::unique_ptr<TransportFixture> {
                               return std::make_unique<SimFixture>();
                             }}));

}  // namespace
}  // namespace slackline::transport
