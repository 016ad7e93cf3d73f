// The conformance suite over --transport=auto.
#include "tests/transport/auto_fixture.h"

namespace slackline::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Auto, TransportTest,
                         testing::Values(TransportUnderTest{
                             "auto", []() -> std::unique_ptr<TransportFixture> {
                               return std::make_unique<AutoFixture>();
                             }}));

}  // namespace
}  // namespace slackline::transport
