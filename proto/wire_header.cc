#include "proto/wire_header.h"

#include <bit>
#include <cmath>

#include "common/byte_order.h"
#include "common/hash.h"

namespace slackline::proto {
namespace {

// Byte offsets of the fields, as docs/wire_format.md lists them.
namespace at {
constexpr size_t kMagic = 0;
constexpr size_t kVersion = 4;
constexpr size_t kKind = 6;
constexpr size_t kFlags = 7;
constexpr size_t kRequestId = 8;
constexpr size_t kEpoch = 16;
constexpr size_t kClock = 24;
constexpr size_t kWorker = 32;
constexpr size_t kIncarnation = 36;
constexpr size_t kTable = 40;
constexpr size_t kChunk = 44;
constexpr size_t kRound = 48;
constexpr size_t kCodec = 52;
constexpr size_t kReplyCodec = 53;
constexpr size_t kStatus = 54;
constexpr size_t kWeight = 56;
constexpr size_t kScale = 64;
constexpr size_t kPayloadBytes = 68;
constexpr size_t kWeightsVersion = 72;
constexpr size_t kMinClock = 80;
constexpr size_t kPayloadHash = 88;
constexpr size_t kTraceId = 96;
constexpr size_t kReserved = 104;
constexpr size_t kHeaderHash = 120;
}  // namespace at
static_assert(at::kHeaderHash + sizeof(uint64_t) == kWireHeaderBytes);

constexpr uint8_t kKnownFlags = kFlagEmptyPush;
constexpr uint64_t kReservedWords = (at::kHeaderHash - at::kReserved) / sizeof(uint64_t);

using Header = std::span<std::byte, kWireHeaderBytes>;
using ConstHeader = std::span<const std::byte, kWireHeaderBytes>;

bool IsKind(uint8_t value) {
  switch (static_cast<MessageKind>(value)) {
    case MessageKind::kHello:
    case MessageKind::kPushPull:
    case MessageKind::kPush:
    case MessageKind::kPull:
    case MessageKind::kInit:
    case MessageKind::kReduce:
    case MessageKind::kReply:
    case MessageKind::kTaken:
      return true;
  }
  return false;
}

bool IsReplyStatus(uint16_t value) {
  return value <= static_cast<uint16_t>(ReplyStatus::kShuttingDown);
}

bool IsCodec(uint8_t value) { return value <= static_cast<uint8_t>(CodecId::kRandK); }

Status OutOfRange(std::string_view field, const std::string& found, std::string_view expected) {
  std::string message = "wire header: ";
  message.append(field).append(" is ").append(found).append(", expected ").append(expected);
  return InvalidArgument(std::move(message));
}

// The bytes are a header of ours, of this version, undamaged.
Status CheckFrame(ConstHeader in) {
  const uint32_t magic = LoadLe<uint32_t>(&in[at::kMagic]);
  if (magic != kWireMagic) {
    return DataLoss("wire header: magic is " + std::to_string(magic) + ", expected " +
                    std::to_string(kWireMagic) + "; the peer speaks another protocol");
  }
  // The version comes before the checksum: another version may keep it elsewhere.
  const uint16_t version = LoadLe<uint16_t>(&in[at::kVersion]);
  if (version != kWireVersion) {
    return Unimplemented("wire header: the peer's version is " + std::to_string(version) +
                         ", this program's is " + std::to_string(kWireVersion) +
                         "; run the same release on both sides");
  }
  const uint64_t stated = LoadLe<uint64_t>(&in[at::kHeaderHash]);
  const uint64_t actual = Hash64(in.first<at::kHeaderHash>());
  if (stated != actual) {
    return DataLoss("wire header: checksum is " + HashToHex(stated) + ", of the bytes " +
                    HashToHex(actual) + "; the header is damaged");
  }
  return OkStatus();
}

// Enumerations, checked before they are cast.
Status CheckEnumerations(ConstHeader in) {
  const auto kind = LoadLe<uint8_t>(&in[at::kKind]);
  if (!IsKind(kind)) return OutOfRange("kind", std::to_string(kind), "a message kind");
  const auto flags = LoadLe<uint8_t>(&in[at::kFlags]);
  if ((flags & ~kKnownFlags) != 0) {
    return OutOfRange("flags", std::to_string(flags), "no bit besides 0");
  }
  const auto status = LoadLe<uint16_t>(&in[at::kStatus]);
  if (!IsReplyStatus(status)) return OutOfRange("status", std::to_string(status), "0 to 9");
  const auto codec = LoadLe<uint8_t>(&in[at::kCodec]);
  if (!IsCodec(codec)) return OutOfRange("codec", std::to_string(codec), "0 to 10");
  const auto reply_codec = LoadLe<uint8_t>(&in[at::kReplyCodec]);
  if (!IsCodec(reply_codec)) {
    return OutOfRange("reply_codec", std::to_string(reply_codec), "0 to 10");
  }
  for (size_t word = 0; word < kReservedWords; ++word) {
    const auto value = LoadLe<uint64_t>(&in[at::kReserved + word * sizeof(uint64_t)]);
    if (value != 0) return OutOfRange("a reserved field", std::to_string(value), "0");
  }
  return OkStatus();
}

WireHeader Load(ConstHeader in) {
  WireHeader header;
  header.kind = static_cast<MessageKind>(LoadLe<uint8_t>(&in[at::kKind]));
  header.flags = LoadLe<uint8_t>(&in[at::kFlags]);
  header.status = static_cast<ReplyStatus>(LoadLe<uint16_t>(&in[at::kStatus]));
  header.request_id = LoadLe<uint64_t>(&in[at::kRequestId]);
  header.epoch = LoadLe<uint64_t>(&in[at::kEpoch]);
  header.clock = std::bit_cast<int64_t>(LoadLe<uint64_t>(&in[at::kClock]));
  header.worker = LoadLe<uint32_t>(&in[at::kWorker]);
  header.incarnation = LoadLe<uint32_t>(&in[at::kIncarnation]);
  header.table = LoadLe<uint32_t>(&in[at::kTable]);
  header.chunk = LoadLe<uint32_t>(&in[at::kChunk]);
  header.round = LoadLe<uint32_t>(&in[at::kRound]);
  header.codec = static_cast<CodecId>(LoadLe<uint8_t>(&in[at::kCodec]));
  header.reply_codec = static_cast<CodecId>(LoadLe<uint8_t>(&in[at::kReplyCodec]));
  header.weight = std::bit_cast<double>(LoadLe<uint64_t>(&in[at::kWeight]));
  header.scale = std::bit_cast<float>(LoadLe<uint32_t>(&in[at::kScale]));
  header.payload_bytes = LoadLe<uint32_t>(&in[at::kPayloadBytes]);
  header.version = LoadLe<uint64_t>(&in[at::kWeightsVersion]);
  header.min_clock = std::bit_cast<int64_t>(LoadLe<uint64_t>(&in[at::kMinClock]));
  header.payload_hash = LoadLe<uint64_t>(&in[at::kPayloadHash]);
  header.trace_id = LoadLe<uint64_t>(&in[at::kTraceId]);
  return header;
}

// What each field may hold by itself.
Status CheckRanges(const WireHeader& header) {
  if (header.clock < 0) return OutOfRange("clock", std::to_string(header.clock), "at least 0");
  if (header.min_clock < kNoClock) {
    return OutOfRange("min_clock", std::to_string(header.min_clock), "at least -1");
  }
  if (!std::isfinite(header.weight) || header.weight < 0) {
    return OutOfRange("weight", std::to_string(header.weight), "finite and at least 0");
  }
  if (!std::isfinite(header.scale) || header.scale <= 0) {
    return OutOfRange("scale", std::to_string(header.scale), "finite and above 0");
  }
  if (header.payload_bytes > kMaxPayloadBytes) {
    return OutOfRange("payload_bytes", std::to_string(header.payload_bytes),
                      "at most " + std::to_string(kMaxPayloadBytes));
  }
  if (header.table != 0) return OutOfRange("table", std::to_string(header.table), "0");
  return OkStatus();
}

// What a message's kind says about its other fields.
Status CheckKind(const WireHeader& header) {
  const std::string kind(MessageKindName(header.kind));
  if (header.kind != MessageKind::kReply && header.status != ReplyStatus::kOk) {
    return OutOfRange("status of a " + kind, std::string(ReplyStatusName(header.status)), "ok");
  }
  const bool empty = (header.flags & kFlagEmptyPush) != 0;
  const bool is_push = header.kind == MessageKind::kPushPull || header.kind == MessageKind::kPush ||
                       header.kind == MessageKind::kReduce;
  if (empty && !is_push) return OutOfRange("flags of a " + kind, "empty push", "0");
  const bool bare =
      empty || header.kind == MessageKind::kPull || header.kind == MessageKind::kTaken;
  if (bare && header.payload_bytes != 0) {
    return OutOfRange("payload_bytes of " + std::string(empty ? "an empty " : "a ") + kind,
                      std::to_string(header.payload_bytes), "0");
  }
  return OkStatus();
}

}  // namespace

void EncodeWireHeader(const WireHeader& header, Header out) {
  StoreLe(&out[at::kMagic], kWireMagic);
  StoreLe(&out[at::kVersion], kWireVersion);
  StoreLe(&out[at::kKind], static_cast<uint8_t>(header.kind));
  StoreLe(&out[at::kFlags], header.flags);
  StoreLe(&out[at::kRequestId], header.request_id);
  StoreLe(&out[at::kEpoch], header.epoch);
  StoreLe(&out[at::kClock], std::bit_cast<uint64_t>(header.clock));
  StoreLe(&out[at::kWorker], header.worker);
  StoreLe(&out[at::kIncarnation], header.incarnation);
  StoreLe(&out[at::kTable], header.table);
  StoreLe(&out[at::kChunk], header.chunk);
  StoreLe(&out[at::kRound], header.round);
  StoreLe(&out[at::kCodec], static_cast<uint8_t>(header.codec));
  StoreLe(&out[at::kReplyCodec], static_cast<uint8_t>(header.reply_codec));
  StoreLe(&out[at::kStatus], static_cast<uint16_t>(header.status));
  StoreLe(&out[at::kWeight], std::bit_cast<uint64_t>(header.weight));
  StoreLe(&out[at::kScale], std::bit_cast<uint32_t>(header.scale));
  StoreLe(&out[at::kPayloadBytes], header.payload_bytes);
  StoreLe(&out[at::kWeightsVersion], header.version);
  StoreLe(&out[at::kMinClock], std::bit_cast<uint64_t>(header.min_clock));
  StoreLe(&out[at::kPayloadHash], header.payload_hash);
  StoreLe(&out[at::kTraceId], header.trace_id);
  for (size_t word = 0; word < kReservedWords; ++word) {
    StoreLe(&out[at::kReserved + word * sizeof(uint64_t)], uint64_t{0});
  }
  StoreLe(&out[at::kHeaderHash], Hash64(out.first<at::kHeaderHash>()));
}

Result<WireHeader> ParseWireHeader(ConstHeader in) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckFrame(in));
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckEnumerations(in));
  const WireHeader header = Load(in);
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckRanges(header));
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckKind(header));
  return header;
}

std::string_view MessageKindName(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello:
      return "hello";
    case MessageKind::kPushPull:
      return "push-pull";
    case MessageKind::kPush:
      return "push";
    case MessageKind::kPull:
      return "pull";
    case MessageKind::kInit:
      return "init";
    case MessageKind::kReduce:
      return "reduce";
    case MessageKind::kReply:
      return "reply";
    case MessageKind::kTaken:
      return "taken";
  }
  return "unknown";
}

std::string_view ReplyStatusName(ReplyStatus status) {
  switch (status) {
    case ReplyStatus::kOk:
      return "ok";
    case ReplyStatus::kDuplicate:
      return "duplicate";
    case ReplyStatus::kNotInView:
      return "not-in-view";
    case ReplyStatus::kMapChanged:
      return "map-changed";
    case ReplyStatus::kNotInitialised:
      return "not-initialised";
    case ReplyStatus::kBusy:
      return "busy";
    case ReplyStatus::kRoundClosed:
      return "round-closed";
    case ReplyStatus::kMalformed:
      return "malformed";
    case ReplyStatus::kNotFinite:
      return "not-finite";
    case ReplyStatus::kShuttingDown:
      return "shutting-down";
  }
  return "unknown";
}

bool IsRequest(MessageKind kind) {
  return kind != MessageKind::kReply && kind != MessageKind::kTaken;
}

std::string Describe(const WireHeader& header) {
  std::string text(MessageKindName(header.kind));
  if (header.kind == MessageKind::kReply) {
    text.append(" ").append(ReplyStatusName(header.status));
  }
  if ((header.flags & kFlagEmptyPush) != 0) text.append(" (empty)");
  text.append(" #").append(std::to_string(header.request_id));
  text.append(" worker ").append(std::to_string(header.worker));
  text.append(".").append(std::to_string(header.incarnation));
  text.append(" clock ").append(std::to_string(header.clock));
  text.append(" round ").append(std::to_string(header.round));
  text.append(" chunk ").append(std::to_string(header.chunk));
  text.append(" epoch ").append(std::to_string(header.epoch));
  text.append(", ").append(std::to_string(header.payload_bytes)).append(" bytes");
  return text;
}

}  // namespace slackline::proto
