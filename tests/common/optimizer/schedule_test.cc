#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "common/optimizer/optimizer.h"

namespace slackline {
namespace {

using Kind = ScheduleConfig::Kind;

TEST(ScheduleTest, ConstantIsConstant) {
  const ScheduleConfig config{.learning_rate = 0.3};
  for (const Clock clock : {0, 1, 1000000}) EXPECT_EQ(LearningRate(config, clock), 0.3);
  EXPECT_EQ(LearningRate(config, kNoClock), 0.3);
}

TEST(ScheduleTest, WarmupRisesLinearlyForEveryKind) {
  for (const Kind kind : {Kind::kConstant, Kind::kCosine, Kind::kStep}) {
    const ScheduleConfig config{
        .kind = kind, .learning_rate = 2, .warmup_steps = 4, .total_steps = 100, .step_every = 50};
    EXPECT_DOUBLE_EQ(LearningRate(config, 0), 0.5);
    EXPECT_DOUBLE_EQ(LearningRate(config, 1), 1.0);
    EXPECT_DOUBLE_EQ(LearningRate(config, 2), 1.5);
    EXPECT_DOUBLE_EQ(LearningRate(config, 3), 2.0);
    EXPECT_DOUBLE_EQ(LearningRate(config, 4), 2.0);
  }
}

TEST(ScheduleTest, CosineFollowsItsClosedForm) {
  const ScheduleConfig config{.kind = Kind::kCosine,
                              .learning_rate = 0.5,
                              .warmup_steps = 10,
                              .total_steps = 110,
                              .final_fraction = 0.1};
  for (Clock clock = 10; clock <= 110; ++clock) {
    const double angle = std::numbers::pi * static_cast<double>(clock - 10) / 100;
    EXPECT_NEAR(LearningRate(config, clock), 0.05 + 0.45 * (1 + std::cos(angle)) / 2, 1e-15);
  }
  EXPECT_DOUBLE_EQ(LearningRate(config, 60), 0.275);  // Half way: the mean of both ends.
  EXPECT_NEAR(LearningRate(config, 110), 0.05, 1e-15);
  EXPECT_EQ(LearningRate(config, 5000), LearningRate(config, 110));  // Stays at its end.
}

TEST(ScheduleTest, StepFallsAtMultiples) {
  const ScheduleConfig config{
      .kind = Kind::kStep, .learning_rate = 1, .step_every = 30, .step_factor = 0.5};
  EXPECT_EQ(LearningRate(config, 29), 1.0);
  EXPECT_EQ(LearningRate(config, 30), 0.5);
  EXPECT_EQ(LearningRate(config, 59), 0.5);
  EXPECT_EQ(LearningRate(config, 60), 0.25);
}

TEST(ScheduleTest, ValidConfigsPass) {
  EXPECT_TRUE(ValidateSchedule({}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = Kind::kCosine, .total_steps = 1}).ok());
  EXPECT_TRUE(ValidateSchedule({.kind = Kind::kStep, .step_every = 1, .step_factor = 1}).ok());
}

TEST(ScheduleTest, MessagesNameWhatIsWrong) {
  struct Case {
    ScheduleConfig config;
    std::string starts;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const Case cases[] = {
      {{.learning_rate = 0}, "--learning_rate=0: expected"},
      {{.learning_rate = std::nan("")}, "--learning_rate=nan: expected"},
      {{.learning_rate = infinity}, "--learning_rate=inf: expected"},
      {{.warmup_steps = -1}, "--warmup_steps=-1: expected"},
      {{.kind = Kind::kCosine, .warmup_steps = 10, .total_steps = 10},
       "--total_steps=10: expected more than --warmup_steps=10"},
      {{.kind = Kind::kCosine, .total_steps = 10, .final_fraction = 1.5},
       "--final_fraction=1.5: expected"},
      {{.kind = Kind::kStep}, "--step_every=0: expected"},
      {{.kind = Kind::kStep, .step_every = 5, .step_factor = 0}, "--step_factor=0: expected"},
  };
  for (const Case& invalid : cases) {
    const Status status = ValidateSchedule(invalid.config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << invalid.starts;
    EXPECT_THAT(status.message(), testing::StartsWith(invalid.starts));
  }
}

}  // namespace
}  // namespace slackline
