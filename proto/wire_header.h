// The fixed header in front of every data-plane message, and its bounds-checked parser.
//
// 128 bytes, little-endian, versioned and checksummed, the same for every transport. The layout is
// written down in docs/wire_format.md and pinned by a golden test. A parsed header has only passed
// the checks that need no context (magic, version, enumerations, ranges, checksum); whoever acts on
// it still checks chunk, sizes and identity against what this side knows.
// Threading: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/codec/codec.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline::proto {

inline constexpr size_t kWireHeaderBytes = 128;
inline constexpr uint32_t kWireMagic = 0x4B4C5331;  // "1SLK" in memory order.
inline constexpr uint16_t kWireVersion = 1;
// The largest payload that any message may announce. A chunk is at most this, encoded.
inline constexpr uint32_t kMaxPayloadBytes = 256u << 20;

enum class MessageKind : uint8_t {
  // Requests, from a worker to a shard.
  kHello = 1,     // Opens a channel: worker, incarnation and epoch. Answered by kReply.
  kPushPull = 2,  // A gradient for `clock`; the reply carries the weights for `clock` + 1.
  kPush = 3,      // A gradient; the reply carries no payload.
  kPull = 4,      // Weights that `clock` may see; no payload in the request.
  kInit = 5,      // FP32 initial weights; taken if the chunk has none, acknowledged in any case.
  kReduce = 6,    // A contribution to (clock, round); the reply carries the aggregate.
  // From a shard to a worker.
  kReply = 32,  // Answers the request with the same request_id; `status` says how.
  kTaken = 33,  // The shard holds the push's payload: its credit returns. No payload, no status.
};

// How a shard answered. Everything but kOk leaves weights and watermarks as they were.
enum class ReplyStatus : uint16_t {
  kOk = 0,
  kDuplicate = 1,  // Held already (a resend); the payload, if any, is as for kOk.
  kNotInView =
      2,  // This (worker, incarnation) is not, or no longer, a member: stop or re-register.
  kMapChanged = 3,      // The epoch in the request is not the shard's: fetch the new shard map.
  kNotInitialised = 4,  // The chunk has no weights yet.
  kBusy = 5,            // A bound was met (early pushes): resend after a pause.
  kRoundClosed = 6,     // BSP: the round was closed without this push; it was not applied.
  kMalformed = 7,       // Sizes, codec, chunk or values are wrong; it was not applied.
  kNotFinite = 8,       // The push decodes to a value that is not finite; counted as an empty push.
  kShuttingDown = 9,
};

// Bits of WireHeader::flags.
inline constexpr uint8_t kFlagEmptyPush = 1;  // The clock moves, no gradient: payload_bytes is 0.

struct WireHeader {
  MessageKind kind = MessageKind::kHello;
  uint8_t flags = 0;
  ReplyStatus status = ReplyStatus::kOk;
  uint64_t request_id = 0;  // Unique per channel and direction of calls; replies repeat it.
  Epoch epoch = 0;
  Clock clock = 0;  // >= 0; in a reply the request's.
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  uint32_t table = 0;  // 0: the dense space. Others are reserved for sparse tables.
  ChunkIndex chunk = 0;
  uint32_t round = 0;
  CodecId codec = CodecId::kNone;        // Of this message's payload.
  CodecId reply_codec = CodecId::kNone;  // Request: wanted for the reply's payload.
  double weight = 0;                     // Samples (or tokens) behind the gradient; finite, >= 0.
  float scale = 1;                       // Loss scale inside the payload; finite, > 0.
  uint32_t payload_bytes = 0;            // Follows the header; <= kMaxPayloadBytes.
  uint64_t version = 0;  // Of the chunk's weights. Request: read by the worker. Reply: sent.
  Clock min_clock =
      kNoClock;               // Reply: every live worker's updates through this clock are included.
  uint64_t payload_hash = 0;  // XXH3-64 of the payload, or 0: not hashed.
  uint64_t trace_id = 0;

  friend bool operator==(const WireHeader&, const WireHeader&) = default;
};

// Writes the 128 bytes, the checksum last.
void EncodeWireHeader(const WireHeader& header, std::span<std::byte, kWireHeaderBytes> out);

// DataLoss: magic or checksum wrong (not our protocol, or damaged). Unimplemented: another version
// (the message has both). InvalidArgument: a field out of its range (named, with the value).
Result<WireHeader> ParseWireHeader(std::span<const std::byte, kWireHeaderBytes> in);

std::string_view MessageKindName(MessageKind kind);
std::string_view ReplyStatusName(ReplyStatus status);
bool IsRequest(MessageKind kind);
// One line for logs: kind, identity, chunk, sizes.
std::string Describe(const WireHeader& header);

}  // namespace slackline::proto
