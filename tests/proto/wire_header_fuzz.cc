// Any 128 bytes are refused or are exactly what this side would have sent.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/byte_order.h"
#include "common/hash.h"
#include "proto/wire_header.h"
#include "tests/testing/fuzz_expect.h"

namespace {

using slackline::proto::kWireHeaderBytes;
using Bytes = std::array<std::byte, kWireHeaderBytes>;

void ParseAndCompare(const Bytes& bytes) {
  const auto header = slackline::proto::ParseWireHeader(bytes);
  if (!header) {
    slackline::testing::FuzzExpect(!header.error().message().empty(), "a refusal says why");
    return;
  }
  Bytes again;
  slackline::proto::EncodeWireHeader(*header, again);
  slackline::testing::FuzzExpect(again == bytes, "a parsed header encodes to its own bytes");
  slackline::testing::FuzzExpect(!slackline::proto::Describe(*header).empty(), "it has a line");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes{};
  std::transform(data, data + std::min(size, bytes.size()), bytes.begin(),
                 [](uint8_t value) { return static_cast<std::byte>(value); });
  ParseAndCompare(bytes);
  // A fuzzer does not guess checksums: with the frame made right the checks behind it are reached.
  slackline::StoreLe(bytes.data(), slackline::proto::kWireMagic);
  slackline::StoreLe(&bytes[4], slackline::proto::kWireVersion);
  constexpr size_t kHashOffset = kWireHeaderBytes - sizeof(uint64_t);
  slackline::StoreLe(&bytes[kHashOffset], slackline::Hash64(std::span(bytes).first<kHashOffset>()));
  ParseAndCompare(bytes);
  return 0;
}
