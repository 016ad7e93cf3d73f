// The 64 bytes in front of every RDMA message: what the wire header does not know of, the memory
// that the sender grants and the credits that it returns. A message with a wire header has it
// behind the frame, and an eager payload behind that.
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "common/types.h"
#include "proto/wire_header.h"

namespace slackline::transport {

inline constexpr size_t kFrameBytes = 64;
inline constexpr uint32_t kFrameMagic = 0x464B4C53;  // "SLKF" in memory order.
// Frame and wire header.
inline constexpr size_t kPrefixBytes = kFrameBytes + proto::kWireHeaderBytes;

struct Frame {
  enum class Type : uint8_t {
    kReady = 1,    // Opens the channel, each end to the other: proves the path. No wire header.
    kCredit = 2,   // Returns credits and nothing else. No wire header.
    kMessage = 3,  // A wire header follows.
  };
  // How the payload that the wire header announces travels.
  enum class Payload : uint8_t {
    kNone = 0,
    kEager = 1,    // Behind the header.
    kGranted = 2,  // Request: in `payload`, to be READ.
    kWritten = 3,  // Reply: in the request's landing already.
  };
  // Memory of the sender that the receiver may touch until the request is answered.
  struct Grant {
    uint64_t address = 0;
    uint32_t bytes = 0;  // 0: nothing is granted.
    uint32_t key = 0;
    friend bool operator==(const Grant&, const Grant&) = default;
  };

  Type type = Type::kCredit;
  Payload payload_kind = Payload::kNone;
  uint16_t credits = 0;  // Receive buffers that are free again.
  Grant payload;         // To READ.
  Grant landing;         // To WRITE.

  friend bool operator==(const Frame&, const Frame&) = default;
};

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out);

// DataLoss: not a frame. InvalidArgument: a field out of its range.
Result<Frame> ParseFrame(ConstBytes in);

}  // namespace slackline::transport
