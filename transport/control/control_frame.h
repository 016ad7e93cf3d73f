// The frame of the control plane: magic u32, body bytes u32, XXH3-64 of the body, body; integers
// little-endian. Pure functions, no I/O.
// Errors: DataLoss and InvalidArgument for bytes of a peer; ResourceExhausted for a message of ours
// that is too large to send.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::transport {

inline constexpr uint32_t kControlMagic = 0x4C544331;  // "1CTL" in memory order.
inline constexpr size_t kControlMagicBytes = 4;
inline constexpr size_t kControlHeaderBytes = 16;

struct ControlFrameHeader {
  uint32_t body_bytes = 0;
  uint64_t body_hash = 0;
};

// Immutable once made, so that a notice to many connections is encoded once.
using ControlFrame = std::shared_ptr<const std::string>;

Result<ControlFrame> EncodeControlFrame(const control::Envelope& message);
// Of the first 4 bytes alone, so that a stranger is refused before it says more.
Status CheckControlMagic(std::span<const std::byte, kControlMagicBytes> magic);
Result<ControlFrameHeader> ParseControlHeader(
    std::span<const std::byte, kControlHeaderBytes> bytes);
Result<control::Envelope> ParseControlBody(const ControlFrameHeader& header,
                                           const std::string& body);

}  // namespace slackline::transport
