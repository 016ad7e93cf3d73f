#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "common/codec/shared_scale_codec.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

constexpr size_t kBlock = 256;

std::vector<float> Gradient(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * static_cast<float>(1 + seed % 3);
  return values;
}

// The agreement, and what each worker then sends.
struct Round {
  Round(const SharedScaleCodec& codec, const std::vector<std::vector<float>>& gradients) {
    const size_t count = gradients.front().size();
    largest.assign(codec.ScaleCount(count), 0);
    for (const std::vector<float>& gradient : gradients) {
      std::vector<float> own(largest.size());
      codec.FindLargest(gradient.data(), count, 1, nullptr, own.data());
      for (size_t i = 0; i < own.size(); ++i) largest[i] = std::max(largest[i], own[i]);
    }
    for (const std::vector<float>& gradient : gradients) {
      payloads.emplace_back(codec.EncodedBytes(count));
      residuals.emplace_back(count);
      codec.EncodeShared(gradient.data(), count, 1, nullptr, residuals.back().data(),
                         largest.data(), payloads.back().data());
    }
  }
  std::vector<float> largest;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<std::vector<float>> residuals;
};

// Integer sums are those of the codes, written down a value at a time, in whatever order they come.
TEST(SharedScaleTest, SumsAreExactInEveryOrder) {
  const SharedScaleCodec codec(kBlock);
  for (const size_t count : {1, 31, 255, 256, 257, 1000, 2048, 2049}) {
    std::vector<std::vector<float>> gradients;
    for (uint32_t worker = 0; worker < 4; ++worker) gradients.push_back(Gradient(count, worker));
    ForEachSimdTarget([&] {
      const Round round(codec, gradients);
      std::vector<int32_t> want(count);
      for (size_t worker = 0; worker < gradients.size(); ++worker) {
        for (size_t i = 0; i < count; ++i) {
          const float largest = round.largest[i / kBlock];
          const float code = std::nearbyint(gradients[worker][i] * (127 / largest));
          want[i] += static_cast<int32_t>(code);
        }
      }
      std::vector<size_t> order = {0, 1, 2, 3};
      do {
        std::vector<int32_t> sum(count + 1, 77);
        for (size_t i = 0; i < order.size(); ++i) {
          const std::vector<std::byte>& payload = round.payloads[order[i]];
          ASSERT_TRUE(codec.Validate(payload, count).ok());
          ASSERT_TRUE(codec.SameScales(round.payloads[0].data(), payload.data(), count));
          codec.AddCodes(payload.data(), count, i == 0, sum.data());
        }
        ASSERT_EQ(sum.back(), 77);
        sum.pop_back();
        ASSERT_EQ(sum, want);
        std::vector<float> decoded(count);
        codec.DecodeSum(round.payloads[order[0]].data(), sum.data(), count, 0.25f, decoded.data());
        for (size_t i = 0; i < count; ++i) {
          const float step = round.largest[i / kBlock] / 127;
          ASSERT_EQ(decoded[i], static_cast<float>(want[i]) * (step * 0.25f)) << i;
        }
      } while (std::next_permutation(order.begin(), order.end()));
    });
  }
}

// What is sent and what is left make up what came in, over many clocks.
TEST(SharedScaleTest, SentAndResidualAreTheGradients) {
  constexpr size_t kCount = 700;
  const SharedScaleCodec codec(kBlock);
  std::vector<float> residual(kCount), decoded(kCount), largest(codec.ScaleCount(kCount));
  std::vector<double> wanted(kCount), sent(kCount);
  std::vector<std::byte> payload(codec.EncodedBytes(kCount));
  for (uint32_t clock = 0; clock < 40; ++clock) {
    const std::vector<float> gradient = Gradient(kCount, clock);
    codec.FindLargest(gradient.data(), kCount, 0.5f, residual.data(), largest.data());
    for (float& value : largest) value *= 3;  // Of another worker.
    codec.EncodeShared(gradient.data(), kCount, 0.5f, residual.data(), residual.data(),
                       largest.data(), payload.data());
    codec.Decode(payload.data(), kCount, 1, decoded.data());
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] += 0.5 * static_cast<double>(gradient[i]);
      sent[i] += static_cast<double>(decoded[i]);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(sent[i] + static_cast<double>(residual[i]), wanted[i], 1e-4) << i;
  }
}

// One that joined after the agreement: nothing wraps around, and nothing is lost.
TEST(SharedScaleTest, WhatIsAboveTheAgreedScaleStays) {
  constexpr size_t kCount = 256;
  const SharedScaleCodec codec(kBlock);
  const std::vector<float> largest = {127};
  std::vector<float> gradient(kCount, 1000), residual(kCount), decoded(kCount);
  gradient[1] = -1000;
  std::vector<std::byte> payload(codec.EncodedBytes(kCount));
  ForEachSimdTarget([&] {
    codec.EncodeShared(gradient.data(), kCount, 1, nullptr, residual.data(), largest.data(),
                       payload.data());
    codec.Decode(payload.data(), kCount, 1, decoded.data());
    EXPECT_EQ(decoded[0], 127);
    EXPECT_EQ(residual[0], 873);
    EXPECT_EQ(decoded[1], -127);
    EXPECT_EQ(residual[1], -873);
  });
}

TEST(SharedScaleTest, OtherScalesAreSeen) {
  constexpr size_t kCount = 600;
  const SharedScaleCodec codec(kBlock);
  const std::vector<float> gradient = Gradient(kCount, 1);
  std::vector<std::byte> a(codec.EncodedBytes(kCount));
  codec.Encode(gradient.data(), kCount, 1, a.data());
  std::vector<std::byte> b = a;
  EXPECT_TRUE(codec.SameScales(a.data(), b.data(), kCount));
  b.back() ^= std::byte{1};  // A code.
  EXPECT_TRUE(codec.SameScales(a.data(), b.data(), kCount));
  b[16 + 8] ^= std::byte{1};  // The last block's scale.
  EXPECT_FALSE(codec.SameScales(a.data(), b.data(), kCount));
}

TEST(SharedScaleTest, GoldenBytes) {
  const SharedScaleCodec codec(32);
  const std::vector<float> in = {127, -1, 0.5, 64, -200};
  const std::vector<float> largest = {254};
  std::vector<uint8_t> payload(codec.EncodedBytes(in.size()));
  codec.EncodeShared(in.data(), in.size(), 1, nullptr, nullptr, largest.data(),
                     reinterpret_cast<std::byte*>(payload.data()));
  EXPECT_EQ(payload,
            (std::vector<uint8_t>{11, 1, 5, 0,    5,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // As int8.
                                  0,  0, 0, 0x40,                                        // Scale 2.
                                  64, 0, 0, 32,   0x9C}));
  EXPECT_TRUE(codec.Validate(std::as_bytes(std::span(payload)), in.size()).ok());
}

}  // namespace
}  // namespace slackline
