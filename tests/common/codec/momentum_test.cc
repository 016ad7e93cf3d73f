#include "common/codec/momentum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "common/codec/residual_reference.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

constexpr size_t kCount = 1500;
constexpr float kMomentum = 0.9f;

std::unique_ptr<const ResidualCodec> Make(const ResidualCodecOptions& options) {
  auto codec = MakeResidualCodec(options);
  if (!codec) {
    ADD_FAILURE() << codec.error();
    return nullptr;
  }
  return std::move(*codec);
}

std::vector<float> Gradient(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kCount);
  for (float& value : values) value = normal(random);
  return values;
}

// A worker's memory, and the payload of its last push.
struct Worker {
  explicit Worker(const ResidualCodec& with) : codec(with) {}

  // The decoded push.
  std::vector<float> Push(const std::vector<float>& gradient, float scale) {
    payload.resize(codec.EncodedBytes(gradient.size()));
    stats = EncodeWithMomentum(codec, gradient.data(), gradient.size(), scale, kMomentum,
                               {.velocity = velocity.data(),
                                .residual = residual.data(),
                                .next_velocity = velocity.data(),
                                .next_residual = residual.data()},
                               {}, payload.data());
    std::vector<float> decoded(gradient.size());
    codec.Decode(payload.data(), gradient.size(), 1, decoded.data());
    return decoded;
  }

  const ResidualCodec& codec;
  std::vector<float> velocity = std::vector<float>(kCount);
  std::vector<float> residual = std::vector<float>(kCount);
  std::vector<std::byte> payload;
  EncodeStats stats;
};

// Algorithm 4 of the paper, a value at a time: bit for bit.
TEST(MomentumTest, TopKEqualsThePaper) {
  const auto codec = Make({.name = "topk", .fraction = 0.02});
  constexpr size_t kKept = 30;
  ForEachSimdTarget([&] {
    Worker worker(*codec);
    std::vector<float> u(kCount);
    std::vector<float> v(kCount);
    for (uint32_t clock = 0; clock < 60; ++clock) {
      const std::vector<float> gradient = Gradient(clock);
      const std::vector<float> sent = worker.Push(gradient, 0.5f);
      for (size_t i = 0; i < kCount; ++i) u[i] = kMomentum * u[i] + 0.5f * gradient[i];
      const reference::Encoded want = reference::EncodeTopK(kKept, ValueFormat::kFp16, u, 1, v);
      v = want.residual;
      for (size_t i = 0; i < kCount; ++i) {
        if (want.decoded[i] != 0) u[i] = 0;
      }
      ASSERT_EQ(worker.payload, want.payload) << clock;
      ASSERT_EQ(worker.velocity, u) << clock;
      ASSERT_EQ(worker.residual, v) << clock;
      ASSERT_EQ(sent, want.decoded) << clock;
    }
  });
}

// A value that waits and is then sent has gathered what momentum SGD would have moved it by
// (equation 7 of the paper).
TEST(MomentumTest, AValueThatWaitsGathersItsMomentum) {
  const auto codec = Make({.name = "topk", .fraction = 1.0 / kCount});
  Worker worker(*codec);
  double u = 0;
  double v = 0;
  for (int clock = 0; clock < 10; ++clock) {
    std::vector<float> gradient(kCount);
    gradient[7] = 0.25f;
    gradient[1000] = clock < 9 ? 64.0f * static_cast<float>(1 << clock) : 0.0f;  // Sent first.
    u = static_cast<double>(kMomentum) * u + 0.25;
    v += u;
    const std::vector<float> sent = worker.Push(gradient, 1);
    if (clock < 9) {
      ASSERT_EQ(sent[7], 0) << clock;
    } else {
      EXPECT_NEAR(static_cast<double>(sent[7]), v, 1e-3 * v);
      EXPECT_EQ(worker.velocity[7], 0);
    }
  }
}

// A codec that sends something of every value masks nothing: sent and residual make up what
// momentum SGD moves the weights by.
TEST(MomentumTest, WithoutSelectionItIsMomentumSgd) {
  for (const char* name : {"int8", "onebit"}) {
    const auto codec = Make({.name = name});
    Worker worker(*codec);
    std::vector<double> u(kCount);
    std::vector<double> moved(kCount);
    std::vector<double> sent(kCount);
    for (uint32_t clock = 0; clock < 50; ++clock) {
      const std::vector<float> gradient = Gradient(clock);
      const std::vector<float> decoded = worker.Push(gradient, 1);
      for (size_t i = 0; i < kCount; ++i) {
        u[i] = static_cast<double>(kMomentum) * u[i] + static_cast<double>(gradient[i]);
        moved[i] += u[i];
        sent[i] += static_cast<double>(decoded[i]);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(sent[i] + static_cast<double>(worker.residual[i]), moved[i], 2e-3) << name << i;
    }
  }
}

TEST(MomentumTest, TheFirstClockHasNoState) {
  const auto codec = Make({.name = "topk", .fraction = 0.1});
  const std::vector<float> gradient = Gradient(1);
  Worker zeros(*codec);
  zeros.Push(gradient, 1);
  std::vector<float> velocity(kCount, 5);
  std::vector<float> residual(kCount, 5);
  std::vector<std::byte> payload(codec->EncodedBytes(kCount));
  EncodeWithMomentum(*codec, gradient.data(), kCount, 1, kMomentum,
                     {.velocity = nullptr,
                      .residual = nullptr,
                      .next_velocity = velocity.data(),
                      .next_residual = residual.data()},
                     {}, payload.data());
  EXPECT_EQ(payload, zeros.payload);
  EXPECT_EQ(velocity, zeros.velocity);
  EXPECT_EQ(residual, zeros.residual);
}

TEST(MomentumTest, WhatIsNotFiniteIsCountedAndLeftOut) {
  const auto codec = Make({.name = "topk", .fraction = 0.1});
  Worker worker(*codec);
  std::vector<float> gradient = Gradient(1);
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  gradient[1400] = std::numeric_limits<float>::infinity();
  for (int clock = 0; clock < 3; ++clock) {
    for (const float value : worker.Push(gradient, 1)) ASSERT_TRUE(std::isfinite(value));
    EXPECT_EQ(worker.stats.non_finite, 2u);
  }
  for (const float value : worker.velocity) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace slackline
