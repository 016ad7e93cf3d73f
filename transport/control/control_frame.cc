#include "transport/control/control_frame.h"

#include "common/byte_order.h"
#include "common/hash.h"
#include "transport/control/control_channel.h"

namespace slackline::transport {

Result<ControlFrame> EncodeControlFrame(const control::Envelope& message) {
  const size_t body_bytes = message.ByteSizeLong();
  if (body_bytes > kMaxControlBytes) {
    return Err(ResourceExhausted("a control message of " + std::to_string(body_bytes) +
                                 " bytes exceeds the limit of " + std::to_string(kMaxControlBytes) +
                                 ": use larger chunks or fewer tensors"));
  }
  auto frame = std::make_shared<std::string>(kControlHeaderBytes + body_bytes, '\0');
  auto* const bytes = reinterpret_cast<std::byte*>(frame->data());
  if (!message.SerializeToArray(bytes + kControlHeaderBytes, static_cast<int>(body_bytes))) {
    return Err(Internal("a control message could not be serialised"));
  }
  StoreLe<uint32_t>(bytes, kControlMagic);
  StoreLe<uint32_t>(bytes + 4, static_cast<uint32_t>(body_bytes));
  StoreLe<uint64_t>(bytes + 8, Hash64(ConstBytes(bytes + kControlHeaderBytes, body_bytes)));
  return ControlFrame(std::move(frame));
}

Status CheckControlMagic(std::span<const std::byte, kControlMagicBytes> magic) {
  if (LoadLe<uint32_t>(magic.data()) == kControlMagic) return OkStatus();
  return DataLoss("the bytes are not a Slackline control message");
}

Result<ControlFrameHeader> ParseControlHeader(
    std::span<const std::byte, kControlHeaderBytes> bytes) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckControlMagic(bytes.first<kControlMagicBytes>()));
  const ControlFrameHeader header{.body_bytes = LoadLe<uint32_t>(bytes.data() + 4),
                                  .body_hash = LoadLe<uint64_t>(bytes.data() + 8)};
  if (header.body_bytes > kMaxControlBytes) {
    return Err(InvalidArgument("a control message of " + std::to_string(header.body_bytes) +
                               " bytes is announced, the limit is " +
                               std::to_string(kMaxControlBytes)));
  }
  return header;
}

Result<control::Envelope> ParseControlBody(const ControlFrameHeader& header,
                                           const std::string& body) {
  if (Hash64(std::as_bytes(std::span(body))) != header.body_hash) {
    return Err(DataLoss("a control message's checksum does not match its body"));
  }
  control::Envelope message;
  if (!message.ParseFromString(body)) {
    return Err(DataLoss("a control message's body is not an Envelope"));
  }
  return message;
}

}  // namespace slackline::transport
