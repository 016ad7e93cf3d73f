#include "common/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "common/codec/reference.h"
#include "common/counting_allocator.h"
#include "common/optimizer/reference.h"
#include "tests/common/simd_targets.h"

namespace slackline {
namespace {

using testing::HasSubstr;

constexpr OptimizerKind kAllKinds[] = {OptimizerKind::kSgd,
                                       OptimizerKind::kMomentum,
                                       OptimizerKind::kNesterov,
                                       OptimizerKind::kAdam,
                                       OptimizerKind::kAdamW,
                                       OptimizerKind::kAdagrad,
                                       OptimizerKind::kDelayedNesterov};

std::unique_ptr<Optimizer> MustCreate(const OptimizerConfig& config) {
  Result<std::unique_ptr<Optimizer>> optimizer = Optimizer::Create(config);
  EXPECT_TRUE(optimizer.has_value()) << optimizer.error().message();
  return std::move(*optimizer);
}

std::vector<float> Values(size_t count, uint32_t seed, float low, float high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// The arrays of one step with room around what the step may touch: the start is not aligned, and
// the values in front and behind must survive.
struct Arrays {
  static constexpr size_t kFront = 3;
  static constexpr size_t kBehind = 19;

  Arrays(size_t count, uint32_t seed)
      : weights(Values(kFront + count + kBehind, seed, -1, 1)),
        weights_out(weights.size(), 7.0f),
        slot0(Values(weights.size(), seed + 1, 0, 1)),
        slot1(Values(weights.size(), seed + 2, 0, 1)),
        copy(2 * weights.size(), std::byte{0xA5}) {}

  ParameterView View(size_t count, bool in_place) {
    return {.weights = weights.data() + kFront,
            .weights_out = (in_place ? weights : weights_out).data() + kFront,
            .slot0 = slot0.data() + kFront,
            .slot1 = slot1.data() + kFront,
            .count = count};
  }

  std::vector<float> weights;
  std::vector<float> weights_out;
  std::vector<float> slot0;
  std::vector<float> slot1;
  std::vector<std::byte> copy;
};

testing::AssertionResult SameBits(const std::vector<float>& actual,
                                  const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(float)) != 0) {
      return testing::AssertionFailure()
             << "index " << i << ": " << actual[i] << ", expected " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

// How a gradient reaches the step.
struct GradientForm {
  bool sum = false;
  CodecId payload = CodecId::kNone;
};

constexpr GradientForm kForms[] = {{true, CodecId::kNone},  {false, CodecId::kFp32},
                                   {false, CodecId::kFp16}, {false, CodecId::kBf16},
                                   {true, CodecId::kFp32},  {true, CodecId::kFp16},
                                   {true, CodecId::kBf16}};

class OptimizerKindTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  OptimizerConfig Config() const {
    return {.kind = GetParam(), .period = 3, .activation = 0.2, .weight_decay = 0.05};
  }
};

INSTANTIATE_TEST_SUITE_P(All, OptimizerKindTest, testing::ValuesIn(kAllKinds),
                         [](const auto& info) {
                           return std::string(OptimizerKindName(info.param));
                         });

// One fused step and one reference step on equal arrays; everything must be equal afterwards.
void ExpectEqualStep(const OptimizerConfig& config, const Optimizer& optimizer, size_t count,
                     const GradientForm& form, CodecId copy_codec, bool in_place, bool decay) {
  const auto seed = static_cast<uint32_t>(count);
  const std::vector<float> sum = Values(count + 1, seed + 10, -4, 4);
  const std::vector<float> values = Values(count + 1, seed + 11, -4, 4);
  std::vector<std::byte> payload(4 * (count + 1));
  GradientView gradient{.scale = 1.0f / 3};
  if (form.sum) gradient.sum = sum.data() + 1;
  if (form.payload != CodecId::kNone) {
    slackline::reference::Encode(form.payload, values.data(), count + 1, 1, payload.data());
    gradient.payload = payload.data() + FindCodec(form.payload)->EncodedBytes(1);
    gradient.payload_codec = form.payload;
    gradient.payload_scale = 1.0f / 1024;
  }
  Arrays actual(count, seed);
  Arrays expected(count, seed);
  const auto view = [&](Arrays& arrays) {
    ParameterView parameters = arrays.View(count, in_place);
    parameters.decay = decay;
    parameters.copy_codec = copy_codec;
    if (copy_codec != CodecId::kNone) parameters.copy_out = arrays.copy.data() + 2;
    return parameters;
  };
  for (const uint64_t step : {2, 3}) {  // Delayed Nesterov: within its period, and at its end.
    optimizer.Step(view(actual), gradient, 0.01f, step);
    reference::Step(config, view(expected), gradient, 0.01f, step);
  }
  ASSERT_TRUE(SameBits(actual.weights, expected.weights));
  ASSERT_TRUE(SameBits(actual.weights_out, expected.weights_out));
  ASSERT_TRUE(SameBits(actual.slot0, expected.slot0));
  ASSERT_TRUE(SameBits(actual.slot1, expected.slot1));
  ASSERT_EQ(actual.copy, expected.copy);
}

// Every length up to some vectors, then a few that cross the tiles between update and copy.
std::vector<size_t> Counts() {
  std::vector<size_t> counts;
  for (size_t count = 0; count <= 600; count += count < 50 ? 1 : 37) counts.push_back(count);
  for (const size_t count : {8192, 8209}) counts.push_back(count);
  return counts;
}

TEST_P(OptimizerKindTest, EqualsReferenceBitForBit) {
  const OptimizerConfig config = Config();
  const auto optimizer = MustCreate(config);
  ForEachSimdTarget([&] {
    for (const size_t count : Counts()) {
      for (size_t i = 0; i < std::size(kForms); ++i) {
        // Spread over the counts, so that every form meets every copy and length of tail.
        constexpr CodecId kCopies[] = {CodecId::kNone, CodecId::kFp16, CodecId::kBf16};
        const CodecId copy = kCopies[(count + i) % 3];
        const bool in_place = count % 2 == 0;
        const bool decay = count % 5 != 0;
        SCOPED_TRACE(testing::Message() << count << " values, sum " << kForms[i].sum
                                        << ", payload codec " << static_cast<int>(kForms[i].payload)
                                        << ", copy codec " << static_cast<int>(copy));
        ExpectEqualStep(config, *optimizer, count, kForms[i], copy, in_place, decay);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// The textbook formulas in double precision, from scratch: one parameter over several steps.
struct Textbook {
  OptimizerConfig config;
  double w;
  double slot0 = 0;
  double slot1 = 0;
  int t = 0;

  void Step(double g, double rate, bool decay) {
    ++t;
    const double lambda = decay ? config.weight_decay : 0;
    if (config.kind == OptimizerKind::kAdamW) {
      w -= rate * lambda * w;
    } else {
      g += lambda * w;
    }
    switch (config.kind) {
      case OptimizerKind::kSgd:
        w -= rate * g;
        break;
      case OptimizerKind::kMomentum:
        slot0 = config.momentum * slot0 + g;
        w -= rate * slot0;
        break;
      case OptimizerKind::kNesterov:
        slot0 = config.momentum * slot0 + g;
        w -= rate * (g + config.momentum * slot0);
        break;
      case OptimizerKind::kDelayedNesterov: {
        // Algorithm 3 of arXiv 2401.09135; t counts from 1 here.
        const double n = config.period, c = config.activation;
        slot1 += g;
        if (t % static_cast<int>(n) == 0) {
          slot0 = config.momentum * slot0 + slot1 / n;
          slot1 = 0;
          w -= rate * ((1 - c * n + c) * config.momentum * slot0 + g / n);
        } else {
          w -= rate * (c * config.momentum * slot0 + g / n);
        }
        break;
      }
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW: {
        slot0 = config.beta1 * slot0 + (1 - config.beta1) * g;
        slot1 = config.beta2 * slot1 + (1 - config.beta2) * g * g;
        const double first = slot0 / (1 - std::pow(config.beta1, t));
        const double second = slot1 / (1 - std::pow(config.beta2, t));
        w -= rate * first / (std::sqrt(second) + config.epsilon);
        break;
      }
      case OptimizerKind::kAdagrad:
        slot0 += g * g;
        w -= rate * g / (std::sqrt(slot0) + config.epsilon);
        break;
    }
  }
};

TEST_P(OptimizerKindTest, FollowsTheFormulaOverManySteps) {
  constexpr size_t kCount = 37;
  constexpr float kRate = 0.02f;
  const OptimizerConfig config = Config();
  const auto optimizer = MustCreate(config);
  for (const bool decay : {false, true}) {
    std::vector<float> weights = Values(kCount, 1, -1, 1);
    std::vector<float> slot0(kCount, 0);
    std::vector<float> slot1(kCount, 0);
    std::vector<Textbook> textbook;
    for (const float w : weights) textbook.push_back({.config = config, .w = w});
    for (uint32_t step = 1; step <= 50; ++step) {
      const std::vector<float> gradient = Values(kCount, 100 + step, -1, 1);
      optimizer->Step({.weights = weights.data(),
                       .weights_out = weights.data(),
                       .slot0 = slot0.data(),
                       .slot1 = slot1.data(),
                       .count = kCount,
                       .decay = decay},
                      {.sum = gradient.data(), .scale = 0.5f}, kRate, step);
      for (size_t i = 0; i < kCount; ++i) textbook[i].Step(0.5 * gradient[i], kRate, decay);
    }
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(weights[i], textbook[i].w, 2e-5) << i << ", decay " << decay;
      EXPECT_NEAR(slot0[i], textbook[i].slot0, 2e-5) << i;
      EXPECT_NEAR(slot1[i], textbook[i].slot1, 2e-5) << i;
    }
  }
}

TEST_P(OptimizerKindTest, SlotsHaveNames) {
  const auto optimizer = MustCreate(Config());
  std::vector<std::string> names;
  for (size_t i = 0; i < optimizer->slot_count(); ++i) {
    names.emplace_back(optimizer->slot_name(i));
  }
  std::vector<std::string> expected;
  switch (GetParam()) {
    case OptimizerKind::kSgd:
      break;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
      expected = {"momentum"};
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      expected = {"first_moment", "second_moment"};
      break;
    case OptimizerKind::kDelayedNesterov:
      expected = {"momentum", "delayed_sum"};
      break;
    case OptimizerKind::kAdagrad:
      expected = {"square_sum"};
      break;
  }
  EXPECT_EQ(names, expected);
}

TEST_P(OptimizerKindTest, NameParsesBack) {
  const auto kind = ParseOptimizerKind(OptimizerKindName(GetParam()));
  ASSERT_TRUE(kind.has_value());
  EXPECT_EQ(*kind, GetParam());
}

TEST_P(OptimizerKindTest, StepAllocatesNothing) {
  constexpr size_t kCount = 10003;
  const auto optimizer = MustCreate(Config());
  Arrays arrays(kCount, 1);
  ParameterView parameters = arrays.View(kCount, true);
  parameters.copy_out = arrays.copy.data();
  parameters.copy_codec = CodecId::kFp16;
  const std::vector<float> sum = Values(kCount, 2, -1, 1);
  optimizer->Step(parameters, {.sum = sum.data()}, 0.1f, 1);  // Tables are set up once.
  const AllocationCounts before = ThreadAllocations();
  optimizer->Step(parameters, {.sum = sum.data()}, 0.1f, 2);
  EXPECT_EQ(ThreadAllocations().allocations, before.allocations);
}

// The gradient convention: (sum + payload / loss scale) / weight.
TEST(OptimizerTest, AppliesBothScales) {
  const auto optimizer = MustCreate({.kind = OptimizerKind::kSgd});
  const float sum = 6;
  const uint16_t payload = 0x6400;  // 1024 in FP16.
  float weight = 10;
  optimizer->Step({.weights = &weight, .weights_out = &weight, .count = 1},
                  {.sum = &sum,
                   .payload = reinterpret_cast<const std::byte*>(&payload),
                   .payload_codec = CodecId::kFp16,
                   .payload_scale = 1.0f / 512,
                   .scale = 0.25f},
                  0.5f, 1);
  EXPECT_EQ(weight, 9.0f);  // 10 - 0.5 * (6 + 1024/512) / 4
}

// What one period applies is one Nesterov step with the mean of its gradients.
TEST(OptimizerTest, DelayedNesterovSpreadsOneNesterovStepOverItsPeriod) {
  for (const double activation : {0.0, 0.1, 0.25}) {
    const auto delayed = MustCreate(
        {.kind = OptimizerKind::kDelayedNesterov, .period = 4, .activation = activation});
    const auto nesterov = MustCreate({.kind = OptimizerKind::kNesterov});
    float momentum = 0, sum = 0, w = 1, expected_momentum = 0, expected = 1;
    const float gradients[] = {1, 2, 3, 6};
    const float mean = 3;
    for (uint64_t step = 1; step <= 4; ++step) {
      delayed->Step(
          {.weights = &w, .weights_out = &w, .slot0 = &momentum, .slot1 = &sum, .count = 1},
          {.sum = &gradients[step - 1]}, 0.5f, step);
    }
    nesterov->Step(
        {.weights = &expected, .weights_out = &expected, .slot0 = &expected_momentum, .count = 1},
        {.sum = &mean}, 0.5f, 1);
    EXPECT_NEAR(momentum, expected_momentum, 1e-6);
    // The old momentum is zero here: what an activation moved ahead in time is missing.
    EXPECT_NEAR(w, expected + 0.5 * 0.9 * mean * 3 * activation, 1e-5) << activation;
  }
}

TEST(OptimizerTest, CopySaturatesInsteadOfInfinity) {
  const auto optimizer = MustCreate({.kind = OptimizerKind::kSgd});
  const std::vector<float> gradient(3, 0);
  std::vector<float> weights = {1e6f, -1e6f, 1};
  std::vector<uint16_t> copy(3);
  optimizer->Step({.weights = weights.data(),
                   .weights_out = weights.data(),
                   .count = 3,
                   .copy_out = reinterpret_cast<std::byte*>(copy.data()),
                   .copy_codec = CodecId::kFp16},
                  {.sum = gradient.data()}, 0.1f, 1);
  EXPECT_THAT(copy, testing::ElementsAre(0x7BFF, 0xFBFF, 0x3C00));
}

TEST(OptimizerTest, MessagesNameWhatIsWrong) {
  struct Case {
    OptimizerConfig config;
    std::string starts;
  };
  const double nan = std::nan("");
  const Case cases[] = {
      {{.kind = OptimizerKind::kMomentum, .momentum = 1}, "--momentum=1: expected"},
      {{.kind = OptimizerKind::kNesterov, .momentum = -0.5}, "--momentum=-0.5: expected"},
      {{.kind = OptimizerKind::kNesterov, .momentum = 1 - 1e-12}, "--momentum=1: expected"},
      {{.kind = OptimizerKind::kAdam, .beta1 = 1}, "--beta1=1: expected"},
      {{.kind = OptimizerKind::kAdamW, .beta2 = nan}, "--beta2=nan: expected"},
      {{.kind = OptimizerKind::kAdam, .epsilon = 0}, "--epsilon=0: expected"},
      {{.kind = OptimizerKind::kAdagrad, .epsilon = -1}, "--epsilon=-1: expected"},
      {{.kind = OptimizerKind::kDelayedNesterov, .period = 0}, "--period=0: expected"},
      {{.kind = OptimizerKind::kDelayedNesterov, .period = 4, .activation = 0.3},
       "--activation=0.3: expected"},
      {{.kind = OptimizerKind::kSgd, .weight_decay = -0.1}, "--weight_decay=-0.1: expected"},
      {{.kind = OptimizerKind::kSgd, .weight_decay = nan}, "--weight_decay=nan: expected"},
  };
  for (const Case& invalid : cases) {
    const auto optimizer = Optimizer::Create(invalid.config);
    ASSERT_FALSE(optimizer.has_value()) << invalid.starts;
    EXPECT_EQ(optimizer.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(optimizer.error().message(), testing::StartsWith(invalid.starts));
  }
  EXPECT_FALSE(Optimizer::Create({.kind = static_cast<OptimizerKind>(99)}).has_value());
}

TEST(OptimizerTest, UnusedSettingsAreNotChecked) {
  EXPECT_TRUE(
      Optimizer::Create(
          {.kind = OptimizerKind::kSgd, .momentum = 5, .beta1 = 5, .beta2 = 5, .epsilon = 0})
          .has_value());
}

TEST(OptimizerTest, UnknownNameListsTheKnown) {
  const auto kind = ParseOptimizerKind("lion");
  ASSERT_FALSE(kind.has_value());
  EXPECT_THAT(kind.error().message(), HasSubstr("--optimizer=lion"));
  for (const OptimizerKind known : kAllKinds) {
    EXPECT_THAT(kind.error().message(), HasSubstr(std::string(OptimizerKindName(known))));
  }
}

}  // namespace
}  // namespace slackline
