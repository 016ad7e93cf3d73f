// What may be chosen about the RDMA transport, and its named bounds. Defaults need no flag on a
// host with one RoCE or InfiniBand device.
// Threading: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "transport/poll_mode.h"

namespace slackline::transport {

struct RdmaOptions {
  // Devices by name, in order of preference; channels are spread over them. Empty: every device
  // with a usable port, the nearest to this thread's NUMA node first, and each channel takes the
  // one whose address routes to its peer.
  std::vector<std::string> devices;
  int port = 0;            // Of each device; 0: its first active one.
  int gid_index = -1;      // -1: the RoCE v2 one with the address that routes to the peer.
  uint32_t mtu_bytes = 0;  // Of packets: 256, 512, 1024, 2048 or 4096; 0: the port's own.
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  // 4.096 us * 2^timeout without an acknowledgement is a loss. 18: 1.07 s.
  uint8_t timeout = 18;
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;  // 7: for ever. Credits keep receivers ready; this is for a stalled host.
  // Sleeping is until the device interrupts.
  PollMode poll = PollMode::kAdaptive;

  uint64_t max_region_bytes = uint64_t{256} << 30;
  // An accepted connection must have agreed on everything within this.
  TimeNs handshake_timeout_ns = 10 * kNsPerSecond;
  // Payloads up to this travel inside the message and are copied once, by the receiver; larger ones
  // are moved by the device between the memories that their owners named.
  uint32_t eager_bytes = 3072;
};

// InvalidArgument names the option and its bounds.
Status CheckRdmaOptions(const RdmaOptions& options);

// ---- Bounds ----
inline constexpr size_t kMaxRdmaChannels = 256;  // Of an endpoint.
inline constexpr size_t kMaxRdmaHalfOpen = 64;   // Accepted and not agreed yet.
inline constexpr size_t kMaxRdmaRails = 8;       // Devices of an endpoint.
inline constexpr uint32_t kMaxEagerBytes = 64u << 10;
// Messages that one end may have on their way to the other, each with a receive buffer waiting.
inline constexpr uint32_t kReceiveCredits = 32;
// Buffers beyond the credits, for messages that need none: two that return credits (each stands
// for half of them, so that more are never under way) and the one that opens the channel.
inline constexpr uint32_t kSpareReceives = 4;
inline constexpr uint32_t kChannelReceives = kReceiveCredits + kSpareReceives;
// Work requests in a send queue, and messages among them.
inline constexpr uint32_t kSendQueueDepth = 256;
inline constexpr uint32_t kMaxPostedMessages = 64;
// READs in flight: of a channel (further bounded by what both devices can do), of an endpoint.
inline constexpr uint32_t kMaxChannelReads = 16;
inline constexpr uint32_t kMaxEndpointReads = 64;
// READs and WRITEs are cut into pieces of this, so that channels take turns.
inline constexpr uint32_t kSegmentBytes = 1u << 20;
// Completions of one channel at one time: receives, and signalled sends at worst all messages and
// all READs.
inline constexpr uint32_t kChannelCompletions =
    kChannelReceives + kMaxPostedMessages + kMaxChannelReads;

}  // namespace slackline::transport
