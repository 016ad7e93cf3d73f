// Local steps against the formula in double precision, and through the trainer.
#include "worker/trainer/local_steps.h"

#include <gmock/gmock.h>

#include <cmath>

#include "common/random.h"
#include "tests/worker/trainer/fake_client.h"

namespace slackline::worker {
namespace {

ModelConfig Mlp() {
  ModelConfig config;
  config.kind = ModelConfig::Kind::kMlp;
  config.mlp = {.features = 6, .classes = 4, .hidden = {9}};
  return config;
}

Batch Images(Rng& rng, size_t samples) {
  Batch batch;
  batch.samples = samples;
  batch.positions = 1;
  for (size_t i = 0; i < samples * 6; ++i) {
    batch.pixels.push_back(static_cast<float>(rng.Uniform()));
  }
  for (size_t i = 0; i < samples; ++i) batch.targets.push_back(static_cast<int64_t>(rng.Below(4)));
  return batch;
}

class LocalStepsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBatch = 5;
  static constexpr uint32_t kMicroBatches = 2;

  LocalStepsTest() {
    cluster_.job.set_chunk_bytes(64);  // Several chunks.
    cluster_.learning_rate = 1;        // The server ends where the worker did.
    gradient_.batch = kBatch;
    gradient_.micro_batches = kMicroBatches;
    gradient_.push_codec = CodecId::kFp32;
    local_.steps = 3;
    local_.optimizer = {.kind = OptimizerKind::kMomentum, .momentum = 0.8};
    local_.schedule.kind = ScheduleConfig::Kind::kStep;
    local_.schedule.learning_rate = 0.25;
    local_.schedule.step_every = 4;  // Within a round.
    local_.schedule.step_factor = 0.5;
  }

  void Start() {
    client_ = std::make_unique<FakeClient>(cluster_);
    model_ = Model::Create(Mlp());
    std::vector<TensorSpec> tensors;
    for (const ParameterInfo& parameter : model_->parameters()) {
      tensors.push_back({parameter.name, parameter.shape, parameter.decay});
    }
    ASSERT_TRUE(client_->Declare(tensors).ok());
    InitializeWeights(Mlp(), 1, client_->weights());
    ASSERT_TRUE(client_->Initialize().ok());
    auto local = LocalSteps::Create(local_, gradient_, *client_, *model_);
    ASSERT_TRUE(local.has_value()) << local.error();
    steps_ = std::move(*local);
  }
  void Round(Clock clock, const std::vector<Batch>& batches) {
    steps_->BeginRound();
    for (size_t i = 0; i < batches.size(); ++i) {
      ASSERT_TRUE(model_->Forward(batches[i], {}).has_value());
      ASSERT_TRUE(steps_->Backward(static_cast<uint32_t>(i % kMicroBatches)).ok());
    }
    const auto outcome = steps_->Push(clock);
    ASSERT_TRUE(outcome.has_value()) << outcome.error();
    outcome_ = *outcome;
    ASSERT_TRUE(client_->FinishStep().has_value());
  }

  FakeCluster cluster_;
  GradientOptions gradient_;
  LocalStepOptions local_;
  std::unique_ptr<FakeClient> client_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<LocalSteps> steps_;
  GradientOutcome outcome_;
};

TEST_F(LocalStepsTest, PushesHowFarHStepsOfTheLocalOptimizerWent) {
  Start();
  // The same in double precision; only the gradients are the model's.
  auto reference = Model::Create(Mlp());
  std::vector<float> at(reference->weight_count()), gradient(at.size());
  ASSERT_TRUE(reference->Bind(at, gradient).ok());
  std::ranges::copy(client_->weights(), at.begin());
  std::vector<double> weights(at.begin(), at.end()), momentum(at.size(), 0);
  Rng rng(3);
  Clock step = 0;
  for (Clock clock = 0; clock < 4; ++clock) {
    std::vector<Batch> batches;
    for (uint32_t i = 0; i < local_.steps * kMicroBatches; ++i) {
      batches.push_back(Images(rng, kBatch));
    }
    const std::vector<double> before = weights;
    for (uint32_t h = 0; h < local_.steps; ++h, ++step) {
      std::ranges::fill(gradient, 0.0f);
      for (uint32_t i = 0; i < kMicroBatches; ++i) {
        ASSERT_TRUE(reference->Forward(batches[h * kMicroBatches + i], {}).has_value());
        ASSERT_TRUE(reference->Backward(1, {}).ok());
      }
      const double rate = 0.25 * std::pow(0.5, std::floor(static_cast<double>(step) / 4));
      for (size_t i = 0; i < at.size(); ++i) {
        momentum[i] = 0.8 * momentum[i] + gradient[i] / (kBatch * kMicroBatches);
        weights[i] -= rate * momentum[i];
        at[i] = static_cast<float>(weights[i]);
      }
    }
    Round(clock, batches);
    const FakeClient::Step& pushed = client_->steps().back();
    const double samples = kBatch * kMicroBatches * local_.steps;
    EXPECT_EQ(pushed.options.weight, samples);
    EXPECT_FALSE(outcome_.overflow);
    for (size_t i = 0; i < at.size(); ++i) {
      ASSERT_NEAR(pushed.pushed[i] / samples, before[i] - weights[i], 2e-6) << i;
      ASSERT_NEAR(client_->weights()[i], weights[i], 1e-5);
    }
  }
}

TEST_F(LocalStepsTest, ARoundStartsFromWhatTheServersMadeOfIt) {
  cluster_.learning_rate = 0.5f;  // Half way back.
  Start();
  Rng rng(4);
  const std::vector<float> first(client_->weights().begin(), client_->weights().end());
  std::vector<Batch> batches;
  for (uint32_t i = 0; i < 6; ++i) batches.push_back(Images(rng, kBatch));
  Round(0, batches);
  const float samples = kBatch * kMicroBatches * 3;
  for (size_t i = 0; i < first.size(); ++i) {
    const float moved = client_->steps()[0].pushed[i] / samples;
    ASSERT_NEAR(client_->weights()[i], first[i] - 0.5f * moved, 1e-6);
  }
  steps_->BeginRound();
  ASSERT_TRUE(steps_->Push(1).has_value());  // Without a step nothing has moved.
  EXPECT_THAT(client_->steps()[1].pushed, testing::Each(0.0f));
}

TEST_F(LocalStepsTest, WhatIsNotFiniteIsNeitherStepNorPush) {
  Start();
  Rng rng(5);
  std::vector<Batch> batches;
  for (uint32_t i = 0; i < 6; ++i) batches.push_back(Images(rng, kBatch));
  const std::vector<float> before(client_->weights().begin(), client_->weights().end());
  batches[1].pixels[0] = std::numeric_limits<float>::infinity();  // Of the first local step.
  batches[3].pixels[0] = std::numeric_limits<float>::infinity();
  batches[5].pixels[0] = std::numeric_limits<float>::infinity();
  Round(0, batches);
  EXPECT_FALSE(outcome_.overflow);
  EXPECT_THAT(client_->weights(), testing::ElementsAreArray(before)) << "no step was good";
  // A difference that is no number is an empty push.
  local_.schedule.learning_rate = 1e6;
  local_.optimizer.kind = OptimizerKind::kSgd;
  gradient_.push_codec = CodecId::kFp16;
  Start();
  batches = {};
  for (uint32_t i = 0; i < 6; ++i) batches.push_back(Images(rng, kBatch));
  Round(0, batches);
  EXPECT_TRUE(outcome_.overflow);
  EXPECT_TRUE(client_->steps().back().options.empty);
}

TEST_F(LocalStepsTest, WrongSettingsAreRefused) {
  local_.optimizer.momentum = 2;
  client_ = std::make_unique<FakeClient>(cluster_);
  model_ = Model::Create(Mlp());
  const auto local = LocalSteps::Create(local_, gradient_, *client_, *model_);
  ASSERT_FALSE(local.has_value());
  EXPECT_THAT(local.error().message(), testing::HasSubstr("--momentum=2"));
}

}  // namespace
}  // namespace slackline::worker
