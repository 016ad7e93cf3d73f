// Any bytes from a bootstrap connection are refused or are a hello that encodes to itself.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/byte_order.h"
#include "common/hash.h"
#include "tests/testing/fuzz_expect.h"
#include "transport/rdma/frame.h"
#include "transport/rdma/hello.h"

namespace {

using slackline::testing::FuzzExpect;
namespace transport = slackline::transport;

void Parse(std::span<const std::byte> bytes) {
  const auto hello = transport::ParseHello(bytes);
  if (!hello) {
    FuzzExpect(!hello.error().message().empty(), "a refusal says why");
    return;
  }
  std::array<std::byte, transport::kHelloBytes> again;
  transport::EncodeHello(*hello, again);
  FuzzExpect(transport::ParseHello(again) == hello, "a parsed hello keeps its meaning");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  Parse(bytes);
  (void)transport::ParseFrame(bytes);
  // Behind a right magic, version, size and checksum, since a fuzzer does not guess them.
  std::array<std::byte, transport::kHelloBytes> sealed{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), sealed.size()), sealed.begin());
  slackline::StoreLe(&sealed[0], transport::kHelloMagic);
  slackline::StoreLe(&sealed[8], transport::kRdmaProtocolVersion);
  slackline::StoreLe(&sealed[10], static_cast<uint16_t>(transport::kHelloBytes));
  constexpr size_t kBody = transport::kHelloBytes - sizeof(uint64_t);
  slackline::StoreLe(&sealed[kBody], slackline::Hash64(std::span(sealed).first<kBody>()));
  Parse(sealed);
  return 0;
}
