// Any bytes from a control connection are refused or are an Envelope that frames to itself.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/hash.h"
#include "tests/testing/fuzz_expect.h"
#include "transport/control/control_channel.h"
#include "transport/control/control_frame.h"

namespace {

using slackline::testing::FuzzExpect;
namespace transport = slackline::transport;

// What a connection does with a frame's bytes; the body may be shorter than the header says.
std::optional<slackline::control::Envelope> ParseFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < transport::kControlHeaderBytes) return std::nullopt;
  const auto header = transport::ParseControlHeader(bytes.first<transport::kControlHeaderBytes>());
  if (!header) return std::nullopt;
  const auto magic = bytes.first<transport::kControlMagicBytes>();
  FuzzExpect(transport::CheckControlMagic(magic).ok(), "a parsed header has the magic");
  FuzzExpect(header->body_bytes <= transport::kMaxControlBytes, "the body's size is bounded");
  const auto rest = bytes.subspan(transport::kControlHeaderBytes);
  if (rest.size() < header->body_bytes) return std::nullopt;
  const std::string body(reinterpret_cast<const char*>(rest.data()), header->body_bytes);
  auto message = transport::ParseControlBody(*header, body);
  if (message) return std::move(*message);
  FuzzExpect(!message.error().message().empty(), "a refusal says why");
  return std::nullopt;
}

// The body behind a right header, since a fuzzer does not guess checksums.
void ParseBody(const std::string& body) {
  const transport::ControlFrameHeader header{static_cast<uint32_t>(body.size()),
                                             slackline::Hash64(std::as_bytes(std::span(body)))};
  const auto message = transport::ParseControlBody(header, body);
  if (!message) return;
  const auto frame = transport::EncodeControlFrame(*message);
  FuzzExpect(frame.has_value(), "a parsed message can be sent");
  const auto again = ParseFrame(std::as_bytes(std::span(**frame)));
  FuzzExpect(again.has_value(), "a sent message parses");
  FuzzExpect(again->SerializeAsString() == message->SerializeAsString(), "it keeps its meaning");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ParseFrame(std::as_bytes(std::span(data, size)));
  ParseBody(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
