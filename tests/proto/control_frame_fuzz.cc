// Any bytes are refused or are an Envelope that serialises and parses to the same message.
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/control.pb.h"
#include "tests/testing/fuzz_expect.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  slackline::control::Envelope envelope;
  if (!envelope.ParseFromArray(data, static_cast<int>(size))) return 0;
  const std::string bytes = envelope.SerializeAsString();
  slackline::control::Envelope again;
  slackline::testing::FuzzExpect(again.ParseFromString(bytes), "a parsed message parses again");
  slackline::testing::FuzzExpect(again.SerializeAsString() == bytes, "it keeps its meaning");
  return 0;
}
