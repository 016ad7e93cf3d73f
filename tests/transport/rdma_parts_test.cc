// What of the RDMA transport needs no device: the records that both ends exchange, the options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "common/byte_order.h"
#include "common/hash.h"
#include "transport/rdma/frame.h"
#include "transport/rdma/hello.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/ring.h"

namespace slackline::transport {
namespace {

using testing::HasSubstr;
using HelloBytes = std::array<std::byte, kHelloBytes>;

Hello GoodHello() {
  Hello hello;
  hello.queue_pair = 0x123456;
  hello.first_packet = 0xFEDCBA;
  hello.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1};
  hello.reads = 16;
  hello.mtu_bytes = 4096;
  hello.eager_bytes = 3072;
  hello.credits = 32;
  hello.rail = 1;
  hello.device = "mlx5_0";
  return hello;
}

HelloBytes Encode(const Hello& hello) {
  HelloBytes bytes;
  EncodeHello(hello, bytes);
  return bytes;
}

// Makes the checksum right again.
HelloBytes Sealed(HelloBytes bytes) {
  const size_t body = kHelloBytes - sizeof(uint64_t);
  StoreLe(&bytes[body], Hash64(ConstBytes(bytes).first(body)));
  return bytes;
}

TEST(HelloTest, ComesBackAsItWas) {
  const Hello hello = GoodHello();
  EXPECT_EQ(ParseHello(Encode(hello)).value(), hello);
  Hello refusal;
  refusal.accepted = false;
  refusal.reason = "another version";
  EXPECT_EQ(ParseHello(Encode(refusal)).value(), refusal);
}

TEST(HelloTest, EveryDamagedByteIsRefused) {
  const HelloBytes good = Encode(GoodHello());
  for (size_t i = 0; i < good.size(); ++i) {
    HelloBytes bad = good;
    bad[i] ^= std::byte{0x10};
    EXPECT_FALSE(ParseHello(bad)) << i;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseHello(ConstBytes(good).first(size))) << size;
  }
}

TEST(HelloTest, AnotherVersionIsNamedWhateverFollows) {
  HelloBytes bytes = Encode(GoodHello());
  StoreLe(&bytes[8], uint16_t{9});
  const auto parsed = ParseHello(ConstBytes(bytes).first(16));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(parsed.error().message(), HasSubstr("version is 9, this program's is 1"));
}

TEST(HelloTest, FieldsOutOfRangeAreNamed) {
  const auto refused = [](auto change, const char* field) {
    Hello hello = GoodHello();
    change(hello);
    const auto parsed = ParseHello(Encode(hello));
    ASSERT_FALSE(parsed) << field;
    EXPECT_THAT(parsed.error().message(), HasSubstr(field));
  };
  refused([](Hello& hello) { hello.queue_pair = 0; }, "queue pair");
  refused([](Hello& hello) { hello.queue_pair = 1u << 24; }, "queue pair");
  refused([](Hello& hello) { hello.first_packet = 1u << 24; }, "first packet");
  refused([](Hello& hello) { hello.mtu_bytes = 1500; }, "MTU");
  refused([](Hello& hello) { hello.mtu_bytes = 8192; }, "MTU");
  refused([](Hello& hello) { hello.eager_bytes = kMaxEagerBytes + 1; }, "eager");
  refused([](Hello& hello) { hello.credits = 1; }, "credits");
  refused([](Hello& hello) { hello.credits = 5000; }, "credits");
  refused([](Hello& hello) { hello.rail = kMaxRdmaRails; }, "rail");
  HelloBytes bytes = Encode(GoodHello());
  bytes[12] = std::byte{2};
  EXPECT_FALSE(ParseHello(Sealed(bytes)));
  bytes = Encode(GoodHello());
  bytes[15] = std::byte{1};
  EXPECT_FALSE(ParseHello(Sealed(bytes))) << "reserved";
}

// They go into a log line: nothing of a stranger's may break it.
TEST(HelloTest, TextsAreCutAndMadePrintable) {
  Hello hello = GoodHello();
  hello.device = std::string(100, 'x');
  EXPECT_EQ(ParseHello(Encode(hello)).value().device, std::string(kHelloDeviceChars, 'x'));
  hello.device = "a\nb\x1b[2J";
  EXPECT_EQ(ParseHello(Encode(hello)).value().device, "a?b?[2J");
}

TEST(FrameTest, ComesBackAsItWas) {
  const Frame frame{.type = Frame::Type::kMessage,
                    .payload_kind = Frame::Payload::kGranted,
                    .credits = 17,
                    .payload = {.address = 0x7F0012345678, .bytes = 1 << 20, .key = 0xABCD},
                    .landing = {.address = UINT64_MAX, .bytes = 5, .key = 1}};
  std::array<std::byte, kPrefixBytes> bytes{};
  EncodeFrame(frame, std::span(bytes).first<kFrameBytes>());
  EXPECT_EQ(ParseFrame(bytes).value(), frame);
  EXPECT_FALSE(ParseFrame(ConstBytes(bytes).first(kPrefixBytes - 1))) << "no room for its header";
}

TEST(FrameTest, GarbageIsRefused) {
  std::array<std::byte, kFrameBytes> bytes{};
  EXPECT_FALSE(ParseFrame(bytes));
  EncodeFrame(
      {.type = Frame::Type::kReady, .payload_kind = {}, .credits = 0, .payload = {}, .landing = {}},
      bytes);
  EXPECT_TRUE(ParseFrame(bytes));
  EXPECT_FALSE(ParseFrame(ConstBytes(bytes).first(kFrameBytes - 1)));
  for (const int type : {0, 4, 255}) {
    bytes[4] = static_cast<std::byte>(type);
    EXPECT_FALSE(ParseFrame(bytes)) << type;
  }
  bytes[4] = std::byte{1};
  bytes[5] = std::byte{4};
  EXPECT_FALSE(ParseFrame(bytes)) << "payload kind";
}

TEST(RdmaOptionsTest, DefaultsAreFineAndBoundsAreNamed) {
  EXPECT_TRUE(CheckRdmaOptions({}).ok());
  const auto refused = [](auto change, const char* option) {
    RdmaOptions options;
    change(options);
    EXPECT_THAT(CheckRdmaOptions(options).message(), HasSubstr(option));
  };
  refused([](RdmaOptions& options) { options.gid_index = 256; }, "gid_index is 256");
  refused([](RdmaOptions& options) { options.mtu_bytes = 1500; }, "mtu_bytes is 1500");
  refused([](RdmaOptions& options) { options.timeout = 0; }, "timeout is 0");
  refused([](RdmaOptions& options) { options.service_level = 16; }, "service_level is 16");
  refused([](RdmaOptions& options) { options.eager_bytes = 1 << 20; }, "eager_bytes");
  refused([](RdmaOptions& options) { options.devices.assign(9, "a"); }, "devices is 9");
}

TEST(RingTest, PlacesStayUntilPopped) {
  Ring<int> ring(4);
  for (int i = 0; i < 4; ++i) ring.Push(i);
  EXPECT_TRUE(ring.full());
  ring.Pop();
  ring.Push(4);
  EXPECT_EQ(ring.head(), 1u);
  for (uint64_t place = ring.head(); place != ring.tail(); ++place) {
    EXPECT_EQ(ring.at(place), static_cast<int>(place));
  }
}

}  // namespace
}  // namespace slackline::transport
