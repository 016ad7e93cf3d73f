#include "transport/rdma/frame.h"

#include <algorithm>
#include <string>

#include "common/byte_order.h"

namespace slackline::transport {
namespace {

namespace at {
constexpr size_t kMagic = 0;
constexpr size_t kType = 4;
constexpr size_t kPayloadKind = 5;
constexpr size_t kCredits = 6;
constexpr size_t kPayload = 8;   // Address, bytes, key.
constexpr size_t kLanding = 24;  // The same.
constexpr size_t kReserved = 40;
}  // namespace at

void StoreGrant(std::byte* out, const Frame::Grant& grant) {
  StoreLe(out, grant.address);
  StoreLe(out + 8, grant.bytes);
  StoreLe(out + 12, grant.key);
}

Frame::Grant LoadGrant(const std::byte* in) {
  return {.address = LoadLe<uint64_t>(in),
          .bytes = LoadLe<uint32_t>(in + 8),
          .key = LoadLe<uint32_t>(in + 12)};
}

}  // namespace

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out) {
  StoreLe(&out[at::kMagic], kFrameMagic);
  StoreLe(&out[at::kType], static_cast<uint8_t>(frame.type));
  StoreLe(&out[at::kPayloadKind], static_cast<uint8_t>(frame.payload_kind));
  StoreLe(&out[at::kCredits], frame.credits);
  StoreGrant(&out[at::kPayload], frame.payload);
  StoreGrant(&out[at::kLanding], frame.landing);
  std::fill(out.begin() + at::kReserved, out.end(), std::byte{0});
}

Result<Frame> ParseFrame(ConstBytes in) {
  if (in.size() < kFrameBytes || LoadLe<uint32_t>(&in[at::kMagic]) != kFrameMagic) {
    return Err(DataLoss("RDMA frame: " + std::to_string(in.size()) + " bytes that are not one"));
  }
  const auto type = LoadLe<uint8_t>(&in[at::kType]);
  const auto kind = LoadLe<uint8_t>(&in[at::kPayloadKind]);
  if (type < 1 || type > 3) {
    return Err(
        InvalidArgument("RDMA frame: type is " + std::to_string(type) + ", expected 1 to 3"));
  }
  if (kind > 3) {
    return Err(InvalidArgument("RDMA frame: payload kind is " + std::to_string(kind) +
                               ", expected 0 to 3"));
  }
  Frame frame;
  frame.type = static_cast<Frame::Type>(type);
  frame.payload_kind = static_cast<Frame::Payload>(kind);
  frame.credits = LoadLe<uint16_t>(&in[at::kCredits]);
  frame.payload = LoadGrant(&in[at::kPayload]);
  frame.landing = LoadGrant(&in[at::kLanding]);
  const size_t expected = frame.type == Frame::Type::kMessage ? kPrefixBytes : kFrameBytes;
  if (in.size() < expected) {
    return Err(DataLoss("RDMA frame: " + std::to_string(in.size()) +
                        " bytes of a message that begins with " + std::to_string(expected)));
  }
  return frame;
}

}  // namespace slackline::transport
