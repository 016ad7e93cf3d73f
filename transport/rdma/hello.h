// What both ends of an RDMA channel tell each other over the bootstrap connection before the first
// message: a fixed-size record, versioned and checksummed, and its parser. Whatever a stranger
// sends ends in a Status.
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/types.h"

namespace slackline::transport {

inline constexpr uint64_t kHelloMagic = 0x414D44524B4C53;  // "SLKRDMA\0" in memory order.
inline constexpr uint16_t kRdmaProtocolVersion = 1;
inline constexpr size_t kHelloBytes = 320;
inline constexpr size_t kHelloDeviceChars = 32;
inline constexpr size_t kHelloReasonChars = 176;

struct Hello {
  uint16_t version = kRdmaProtocolVersion;
  bool accepted = true;       // False: the answer is no, `reason` says why.
  uint32_t queue_pair = 0;    // 24 bits.
  uint32_t first_packet = 0;  // PSN, 24 bits.
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;          // InfiniBand's; 0 on Ethernet.
  bool ethernet = true;      // The port's link layer.
  uint8_t reads = 0;         // READs it answers at one time.
  uint32_t mtu_bytes = 0;    // The largest packet it can take.
  uint32_t eager_bytes = 0;  // The largest payload that fits its receive buffers.
  uint32_t credits = 0;      // Receive buffers for this channel.
  uint32_t rail = 0;         // Index among the sender's devices.
  std::string device;        // "mlx5_0", for messages.
  std::string reason;        // One line.

  friend bool operator==(const Hello&, const Hello&) = default;
};

// Longer texts are cut.
void EncodeHello(const Hello& hello, std::span<std::byte, kHelloBytes> out);

// DataLoss: not a hello, or damaged. Unimplemented: another version, with both in the message.
// InvalidArgument: a field out of its range.
Result<Hello> ParseHello(ConstBytes in);

// "device rxe0, GID ::ffff:10.77.0.1, MTU 4096": for messages.
std::string Describe(const Hello& hello);

}  // namespace slackline::transport
