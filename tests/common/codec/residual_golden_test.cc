// Pins the payloads of docs/wire_format.md: bytes written down by hand from its tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "common/codec/residual_codec.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

void ExpectGolden(const ResidualCodecOptions& options, const std::vector<float>& in,
                  const std::vector<uint8_t>& golden, const std::vector<float>& decoded) {
  const auto codec = MakeResidualCodec(options);
  ASSERT_TRUE(codec.has_value()) << codec.error();
  ForEachSimdTarget([&] {
    std::vector<uint8_t> payload((*codec)->EncodedBytes(in.size()));
    auto* bytes = reinterpret_cast<std::byte*>(payload.data());
    (*codec)->Encode(in.data(), in.size(), 1, bytes);
    EXPECT_EQ(payload, golden);
    EXPECT_TRUE((*codec)->Validate({bytes, payload.size()}, in.size()).ok());
    std::vector<float> out(in.size());
    (*codec)->Decode(bytes, in.size(), 1, out.data());
    EXPECT_EQ(out, decoded);
  });
}

TEST(ResidualGoldenTest, Int8) {
  ExpectGolden(
      {.name = "int8", .block = 32}, {127, -1, 0.5, 64, -127},
      {4,    1,    5,    0,    5,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // Header: blocks of 2^5.
       0,    0,    0x80, 0x3F,                                        // Scale 1.
       0x7F, 0xFF, 0x00, 0x40, 0x81},
      {127, -1, 0, 64, -127});
}

TEST(ResidualGoldenTest, Int4) {
  ExpectGolden({.name = "int4", .block = 32}, {7, -1, 2.5, 3, -7},
               {5,    1,    5,    0,    5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                0,    0,    0x80, 0x3F,                                      // Scale 1.
                0xF7, 0x32, 0x09},
               {7, -1, 2, 3, -7});
}

TEST(ResidualGoldenTest, OneBit) {
  ExpectGolden({.name = "onebit", .block = 64}, {1, -2, 3, -4, 0},
               {6,      1, 6, 0,    5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // Header: blocks of 2^6.
                0,      0, 0, 0x40,                                      // Scale 2: 10 / 5.
                0b01010},
               {2, -2, 2, -2, 2});
}

TEST(ResidualGoldenTest, TopK) {
  ExpectGolden({.name = "topk", .fraction = 0.5}, {0, 3, -0.5, 0, 0, -6, 0.25, 1},
               {7,        1,    1,    0,    8,    0,    0,    0,
                4,        0,    0,    0,    0,    0,    0x80, 0x39,  // 1 low bit, scale 2^-12.
                0x00,     0x72, 0x00, 0xE8, 0x00, 0xF6, 0x00, 0x6C,  // 12288 -2048 -24576 4096.
                0b1101,                                              // Low bits of 1, 2, 5 and 7.
                0b1010101},  // Their upper bits 0, 1, 2 and 3, as gaps.
               {0, 3, -0.5, 0, 0, -6, 0, 1});
}

TEST(ResidualGoldenTest, Fp8E4M3) {
  ExpectGolden({.name = "fp8_e4m3", .block = 32}, {448, -1, 0.001953125, 17, -18},
               {8,    1,    5,    0,    5,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                0,    0,    0x80, 0x3F,                                        // Scale 1.
                0x7E, 0xB8, 0x01, 0x58, 0xD9},  // 17 ties to the even 16; 2^-9 is subnormal.
               {448, -1, 0.001953125, 16, -18});
}

TEST(ResidualGoldenTest, Fp8E5M2) {
  ExpectGolden({.name = "fp8_e5m2", .block = 32}, {-57344, 1, 9, 0},
               {9,    1,    5,    0,    4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                0,    0,    0x80, 0x3F,                                      // Scale 1.
                0xFB, 0x3C, 0x48, 0x00},  // 9 ties to the even 8.
               {-57344, 1, 8, 0});
}

TEST(ResidualGoldenTest, TopKOfInt8) {
  ExpectGolden({.name = "topk", .fraction = 0.5, .int8_values = true},
               {0, 96, -0.5, 0, 0, -3, 0, 1},
               {7,        1,    1,    1,    8, 0, 0,    0,     // Values of format 1.
                4,        0,    0,    0,    0, 0, 0x80, 0x3F,  // Scale 1.
                0x60,     0x00, 0xFD, 0x01,                    // 96 0 -3 1.
                0b1101,                                        // As of FP16.
                0b1010101},
               {0, 96, 0, 0, 0, -3, 0, 1});
}

TEST(ResidualGoldenTest, RandK) {
  // The first two of four positions in the order that Permutation gives for the seed behind the
  // header: 2 and 3.
  ExpectGolden({.name = "randk", .fraction = 0.5}, {1, 2, 4, 8},
               {10,   1,    0,    0,   4, 0, 0,    0,     //
                2,    0,    0,    0,   0, 0, 0x00, 0x3A,  // Scale 2^-11.
                0,    0,    0,    0,   0, 0, 0,    0,     // The seed of no identity.
                0x00, 0x70, 0x00, 0x74},                  // 8192 16384.
               {0, 0, 4, 8});
}

// Pins the generator and the seeds: the codes of a third of a step each.
TEST(ResidualGoldenTest, StochasticInt4) {
  const auto codec = MakeResidualCodec({.name = "int4", .block = 32, .stochastic = true});
  ASSERT_TRUE(codec.has_value()) << codec.error();
  std::vector<float> in(16, 1.0f / 3);
  in[0] = 7;
  ForEachSimdTarget([&] {
    std::vector<uint8_t> payload((*codec)->EncodedBytes(in.size()));
    (*codec)->EncodeResidual(in.data(), in.size(), 1, nullptr, nullptr,
                             {.worker = 1, .clock = 2, .chunk = 3},
                             reinterpret_cast<std::byte*>(payload.data()));
    const std::vector<uint8_t> codes(payload.begin() + 20, payload.end());
    EXPECT_EQ(codes, (std::vector<uint8_t>{0x07, 0, 0, 0x10, 0x01, 0, 0, 0x10}));
  });
}

}  // namespace
}  // namespace slackline
