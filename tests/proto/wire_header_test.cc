#include "proto/wire_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "common/byte_order.h"
#include "common/hash.h"

namespace slackline::proto {
namespace {

using ::testing::HasSubstr;
using Bytes = std::array<std::byte, kWireHeaderBytes>;

// Every field differs from its default and from its neighbours.
WireHeader ExampleHeader() {
  WireHeader header;
  header.kind = MessageKind::kPushPull;
  header.flags = 0;
  header.status = ReplyStatus::kOk;
  header.request_id = 0x0102030405060708;
  header.epoch = 0x1112131415161718;
  header.clock = 0x2122232425262728;
  header.worker = 0x31323334;
  header.incarnation = 0x41424344;
  header.chunk = 0x51525354;
  header.round = 0x61626364;
  header.codec = CodecId::kFp16;
  header.reply_codec = CodecId::kBf16;
  header.weight = 1.5;
  header.scale = 1024;
  header.payload_bytes = 0x01020304;
  header.version = 0x7172737475767778;
  header.min_clock = kNoClock;
  header.payload_hash = 0x8182838485868788;
  header.trace_id = 0x9192939495969798;
  return header;
}

// The example, written by hand from docs/wire_format.md; the last eight bytes are its checksum.
constexpr std::array<uint8_t, kWireHeaderBytes> kExampleBytes = {
    0x31, 0x53, 0x4C, 0x4B, 0x01, 0x00, 0x02, 0x00,  // magic "1SLK", version 1, push-pull, flags
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request_id
    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // epoch
    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // clock
    0x34, 0x33, 0x32, 0x31, 0x44, 0x43, 0x42, 0x41,  // worker, incarnation
    0x00, 0x00, 0x00, 0x00, 0x54, 0x53, 0x52, 0x51,  // table, chunk
    0x64, 0x63, 0x62, 0x61, 0x02, 0x03, 0x00, 0x00,  // round, codec, reply_codec, status
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xF8, 0x3F,  // weight 1.5
    0x00, 0x00, 0x80, 0x44, 0x04, 0x03, 0x02, 0x01,  // scale 1024, payload_bytes
    0x78, 0x77, 0x76, 0x75, 0x74, 0x73, 0x72, 0x71,  // version of the weights
    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  // min_clock -1
    0x88, 0x87, 0x86, 0x85, 0x84, 0x83, 0x82, 0x81,  // payload_hash
    0x98, 0x97, 0x96, 0x95, 0x94, 0x93, 0x92, 0x91,  // trace_id
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // reserved
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // reserved
    0xFA, 0xDF, 0x05, 0x2E, 0x2C, 0x1C, 0xEF, 0x77,  // header_hash
};

Bytes Golden() {
  Bytes bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(kExampleBytes[i]);
  return bytes;
}

Bytes Encoded(const WireHeader& header) {
  Bytes bytes;
  bytes.fill(std::byte{0xAA});  // What was there before must not show.
  EncodeWireHeader(header, bytes);
  return bytes;
}

void FixChecksum(Bytes& bytes) { StoreLe(&bytes[120], Hash64(std::span(bytes).first<120>())); }

TEST(WireHeader, EncodesToTheGoldenBytes) { EXPECT_EQ(Encoded(ExampleHeader()), Golden()); }

TEST(WireHeader, ParsesTheGoldenBytes) {
  const auto header = ParseWireHeader(Golden());
  ASSERT_TRUE(header) << header.error();
  EXPECT_EQ(*header, ExampleHeader());
}

TEST(WireHeader, EveryKindStatusCodecAndLimitRoundTrips) {
  for (const MessageKind kind :
       {MessageKind::kHello, MessageKind::kPushPull, MessageKind::kPush, MessageKind::kPull,
        MessageKind::kInit, MessageKind::kReduce, MessageKind::kReply, MessageKind::kTaken}) {
    WireHeader header;
    header.kind = kind;
    ASSERT_TRUE(ParseWireHeader(Encoded(header))) << MessageKindName(kind);
    EXPECT_EQ(*ParseWireHeader(Encoded(header)), header);
    EXPECT_NE(MessageKindName(kind), "unknown");
  }
  for (uint16_t status = 0; status <= 9; ++status) {
    WireHeader header;
    header.kind = MessageKind::kReply;
    header.status = static_cast<ReplyStatus>(status);
    header.codec = CodecId::kFp32;
    header.clock = std::numeric_limits<Clock>::max();
    header.min_clock = std::numeric_limits<Clock>::max();
    header.payload_bytes = kMaxPayloadBytes;
    header.weight = std::numeric_limits<double>::max();
    header.scale = std::numeric_limits<float>::denorm_min();
    const auto parsed = ParseWireHeader(Encoded(header));
    ASSERT_TRUE(parsed) << parsed.error();
    EXPECT_EQ(*parsed, header);
    EXPECT_NE(ReplyStatusName(header.status), "unknown");
  }
  WireHeader empty;
  empty.kind = MessageKind::kPush;
  empty.flags = kFlagEmptyPush;
  EXPECT_TRUE(ParseWireHeader(Encoded(empty)));
}

TEST(WireHeader, EveryFlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * kWireHeaderBytes; ++bit) {
    Bytes bytes = Golden();
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto header = ParseWireHeader(bytes);
    ASSERT_FALSE(header) << "bit " << bit;
    const bool in_version = bit / 8 == 4 || bit / 8 == 5;
    ASSERT_EQ(header.error().code(),
              in_version ? StatusCode::kUnimplemented : StatusCode::kDataLoss)
        << "bit " << bit;
  }
}

// A peer that computes checksums correctly can still send anything: whatever passes must be a
// header that this side could have sent, so that encoding it gives the same bytes.
TEST(WireHeader, EveryByteValueWithARightChecksumIsRefusedOrMeansItself) {
  for (size_t at = 0; at < 120; ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes bytes = Golden();
      bytes[at] = static_cast<std::byte>(value);
      FixChecksum(bytes);
      const auto header = ParseWireHeader(bytes);
      if (header) {
        ASSERT_EQ(Encoded(*header), bytes) << "byte " << at << " = " << value;
      } else if (at >= 6) {
        ASSERT_EQ(header.error().code(), StatusCode::kInvalidArgument) << at << " = " << value;
      }
    }
  }
}

TEST(WireHeader, OtherVersionIsToldWithBothNumbers) {
  Bytes bytes = Golden();
  bytes[4] = std::byte{9};
  const auto header = ParseWireHeader(bytes);  // Its checksum is wrong too, which does not matter.
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(header.error().message(), HasSubstr("version is 9"));
  EXPECT_THAT(header.error().message(), HasSubstr("program's is 1"));
}

struct BadHeader {
  const char* name;
  size_t offset;       // Of the little-endian value that is put into the example,
  size_t width_bytes;  // of this many bytes.
  uint64_t value;
  const char* message;
};

class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsInvalidArgumentThatNamesTheField) {
  const BadHeader& bad = GetParam();
  Bytes bytes = Golden();
  for (size_t i = 0; i < bad.width_bytes; ++i) {
    bytes[bad.offset + i] = static_cast<std::byte>(bad.value >> (8 * i) & 0xFF);
  }
  FixChecksum(bytes);
  const auto header = ParseWireHeader(bytes);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(header.error().message(), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadHeaderTest,
    ::testing::Values(
        BadHeader{"KindZero", 6, 1, 0, "kind is 0"}, BadHeader{"KindBetween", 6, 1, 7, "kind is 7"},
        BadHeader{"KindBeyond", 6, 1, 34, "kind is 34"},
        BadHeader{"UnknownFlag", 7, 1, 2, "flags is 2"},
        BadHeader{"EmptyPushWithPayload", 7, 1, 1, "payload_bytes of an empty push-pull"},
        BadHeader{"PullWithPayload", 6, 1, 4, "payload_bytes of a pull"},
        BadHeader{"TakenWithPayload", 6, 1, 33, "payload_bytes of a taken"},
        BadHeader{"NegativeClock", 24, 8, UINT64_MAX, "clock is -1"},
        BadHeader{"OtherTable", 40, 4, 1, "table is 1"},
        BadHeader{"UnknownCodec", 52, 1, 255, "codec is 255"},
        BadHeader{"UnknownReplyCodec", 53, 1, 255, "reply_codec is 255"},
        BadHeader{"UnknownStatus", 54, 2, 10, "status is 10"},
        BadHeader{"StatusHighByte", 54, 2, 256, "status is 256"},
        BadHeader{"StatusOfARequest", 54, 2, 5, "status of a push-pull is busy"},
        BadHeader{"NegativeWeight", 56, 8, 0xBFF0000000000000, "weight is -1"},
        BadHeader{"InfiniteWeight", 56, 8, 0x7FF0000000000000, "weight is inf"},
        BadHeader{"NanWeight", 56, 8, 0x7FF8000000000000, "weight is nan"},
        BadHeader{"ZeroScale", 64, 4, 0, "scale is 0"},
        BadHeader{"NegativeScale", 64, 4, 0xBF800000, "scale is -1"},
        BadHeader{"InfiniteScale", 64, 4, 0x7F800000, "scale is inf"},
        BadHeader{"NanScale", 64, 4, 0x7FC00000, "scale is nan"},
        BadHeader{"PayloadTooLarge", 68, 4, kMaxPayloadBytes + 1, "payload_bytes is 268435457"},
        BadHeader{"MinClock", 80, 8, UINT64_MAX - 1, "min_clock is -2"},
        BadHeader{"FirstReserved", 104, 1, 1, "reserved"},
        BadHeader{"LastReserved", 119, 1, 1, "reserved"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(WireHeader, EmptyFlagBelongsToPushes) {
  WireHeader header;
  header.flags = kFlagEmptyPush;
  header.kind = MessageKind::kPull;
  const auto refused = ParseWireHeader(Encoded(header));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("flags of a pull"));
}

TEST(WireHeader, DescriptionHasWhatALogNeeds) {
  WireHeader header = ExampleHeader();
  header.kind = MessageKind::kReply;
  header.status = ReplyStatus::kBusy;
  header.request_id = 12;
  header.worker = 3;
  header.incarnation = 2;
  header.clock = 7;
  header.round = 0;
  header.chunk = 9;
  header.epoch = 1;
  header.payload_bytes = 0;
  EXPECT_EQ(Describe(header), "reply busy #12 worker 3.2 clock 7 round 0 chunk 9 epoch 1, 0 bytes");
}

TEST(WireHeader, RequestsAreWhatWorkersSend) {
  EXPECT_TRUE(IsRequest(MessageKind::kHello));
  EXPECT_TRUE(IsRequest(MessageKind::kReduce));
  EXPECT_FALSE(IsRequest(MessageKind::kReply));
  EXPECT_FALSE(IsRequest(MessageKind::kTaken));
}

}  // namespace
}  // namespace slackline::proto
