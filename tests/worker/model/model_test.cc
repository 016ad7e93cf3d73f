// The models, without a tensor library in sight: everything goes through model.h, so that only the
// models' own sources pay for libtorch's headers.
#include "worker/model/model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <set>

#include "common/random.h"
#include "tests/worker/model/saved_bytes.h"
#include "worker/model/sampler.h"

namespace slackline::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;

ModelConfig SmallGpt() {
  ModelConfig config;
  config.gpt = {.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary = 256};
  return config;
}

ModelConfig SmallMlp() {
  ModelConfig config;
  config.kind = ModelConfig::Kind::kMlp;
  config.mlp = {.features = 6, .classes = 4, .hidden = {9, 5}};
  return config;
}

// A model with memory of its own.
struct Bound {
  explicit Bound(const ModelConfig& config, uint64_t seed = 1, const ModelOptions& options = {})
      : model(Model::Create(config, options)),
        weights(model->weight_count()),
        gradients(model->weight_count()) {
    InitializeWeights(config, seed, weights);
    const Status status = model->Bind(weights, gradients);
    EXPECT_TRUE(status.ok()) << status;
  }
  double Loss(const Batch& batch) { return model->Forward(batch, {}).value(); }
  void Gradient(const Batch& batch, float scale) {
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    EXPECT_TRUE(model->Forward(batch, {}).has_value());
    const Status status = model->Backward(scale, {});
    EXPECT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Model> model;
  std::vector<float> weights, gradients;
};

Batch TextBatch(size_t samples, size_t positions, uint64_t seed) {
  Rng rng(seed);
  Batch batch;
  batch.samples = samples;
  batch.positions = positions;
  for (size_t i = 0; i < samples * positions; ++i) {
    batch.tokens.push_back(static_cast<int64_t>(rng.Below(256)));
    batch.targets.push_back(static_cast<int64_t>(rng.Below(256)));
  }
  return batch;
}

Batch ImageBatch(size_t samples, uint64_t seed) {
  Rng rng(seed);
  Batch batch;
  batch.samples = samples;
  batch.positions = 1;
  for (size_t i = 0; i < samples * 6; ++i) {
    batch.pixels.push_back(static_cast<float>(rng.Uniform()));
  }
  for (size_t i = 0; i < samples; ++i) batch.targets.push_back(static_cast<int64_t>(rng.Below(4)));
  return batch;
}

Batch BatchFor(const ModelConfig& config, size_t samples, uint64_t seed) {
  return config.kind == ModelConfig::Kind::kGpt ? TextBatch(samples, 12, seed)
                                                : ImageBatch(samples, seed);
}

class ModelTest : public ::testing::TestWithParam<ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, ModelTest, ::testing::Values(SmallGpt(), SmallMlp()),
                         [](const auto& param) {
                           return std::string(ModelKindName(param.param.kind));
                         });

TEST_P(ModelTest, GradientsAgreeWithDifferences) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 3, 7);
  // Larger weights than at the start, so that every path carries a gradient well above rounding.
  Rng rng(2);
  for (float& w : bound.weights) w += static_cast<float>(0.1 * rng.Normal());
  bound.Gradient(batch, 1);
  size_t offset = 0;
  for (const ParameterInfo& parameter : bound.model->parameters()) {
    const auto count = static_cast<size_t>(parameter.count());
    // Along the gradient itself the difference is largest against the rounding of FP32.
    const std::span<float> weights = std::span(bound.weights).subspan(offset, count);
    const std::span<float> gradient = std::span(bound.gradients).subspan(offset, count);
    double norm = 0;
    for (const float g : gradient) norm += double{g} * double{g};
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-4) << parameter.name << " has no gradient";
    const std::vector<float> saved(weights.begin(), weights.end());
    // A short step for the mlp, whose kinks would show; gpt is smooth.
    const double step = GetParam().kind == ModelConfig::Kind::kGpt ? 2e-2 : 1e-3;
    double loss[2];
    for (const int side : {0, 1}) {
      for (size_t i = 0; i < count; ++i) {
        weights[i] = static_cast<float>(saved[i] + (side ? step : -step) * gradient[i] / norm);
      }
      loss[side] = bound.Loss(batch);
    }
    std::copy(saved.begin(), saved.end(), weights.begin());
    EXPECT_NEAR((loss[1] - loss[0]) / (2 * step), norm, 0.02 * norm + 1e-3) << parameter.name;
    offset += count;
  }
}

TEST_P(ModelTest, GradientIsTheSumOverSamplesTimesTheScale) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 2, 7);
  bound.Gradient(batch, 1);
  const std::vector<float> one = bound.gradients;
  bound.Gradient(batch, 1024);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(bound.gradients[i], 1024 * one[i]) << i;

  // Two samples together are both on their own, to rounding.
  std::vector<double> sum(one.size());
  double loss = 0;
  for (size_t sample = 0; sample < 2; ++sample) {
    Batch single;
    single.samples = 1;
    single.positions = batch.positions;
    const auto part = [&](const auto& from, auto& to) {
      const size_t each = from.size() / 2;
      to.assign(from.begin() + static_cast<ptrdiff_t>(sample * each),
                from.begin() + static_cast<ptrdiff_t>((sample + 1) * each));
    };
    part(batch.tokens, single.tokens);
    part(batch.pixels, single.pixels);
    part(batch.targets, single.targets);
    loss += bound.Loss(single);
    bound.Gradient(single, 1);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += bound.gradients[i];
  }
  EXPECT_NEAR(bound.Loss(batch), loss, 1e-4);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(one[i], sum[i], 1e-5);
}

TEST_P(ModelTest, StartsAtTheLossOfGuessingAndLearnsAFixedBatch) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 4, 9);
  const bool gpt = GetParam().kind == ModelConfig::Kind::kGpt;
  const double first = bound.Loss(batch) / 4;
  EXPECT_NEAR(first, std::log(gpt ? 256.0 : 4.0), gpt ? 0.1 : 1.5);
  double last = 0;
  for (int step = 0; step < 20; ++step) {
    bound.Gradient(batch, 1);
    for (size_t i = 0; i < bound.weights.size(); ++i) {
      bound.weights[i] -= 0.25f * bound.gradients[i];
    }
    last = bound.Loss(batch) / 4;
  }
  EXPECT_LT(last, 0.75 * first);
}

TEST_P(ModelTest, TheSameSeedGivesTheSameBits) {
  const Batch batch = BatchFor(GetParam(), 2, 7);
  Bound a(GetParam(), 5), b(GetParam(), 5), c(GetParam(), 6);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_NE(a.weights, c.weights);
  a.Gradient(batch, 8);
  b.Gradient(batch, 8);
  EXPECT_EQ(std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(float)),
            0);
}

TEST_P(ModelTest, HooksFireOncePerParameterWithTheCompleteGradient) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 2, 7);
  bound.Gradient(batch, 1);
  const std::vector<float> expected = bound.gradients;
  std::vector<size_t> offsets;
  size_t offset = 0;
  for (const auto& parameter : bound.model->parameters()) {
    offsets.push_back(offset);
    offset += static_cast<size_t>(parameter.count());
  }
  for (int round = 0; round < 2; ++round) {
    std::fill(bound.gradients.begin(), bound.gradients.end(), 0.0f);
    std::multiset<size_t> fired;
    ASSERT_TRUE(bound.model->Forward(batch, {}).has_value());
    const Status status = bound.model->Backward(1, [&](size_t index) {
      fired.insert(index);
      const auto count = static_cast<size_t>(bound.model->parameters()[index].count());
      EXPECT_EQ(std::memcmp(&bound.gradients[offsets[index]], &expected[offsets[index]],
                            count * sizeof(float)),
                0)
          << bound.model->parameters()[index].name;
      // The contract: neither weights nor gradient are read again by this backward.
      std::fill_n(&bound.weights[offsets[index]], count, std::nanf(""));
      std::fill_n(&bound.gradients[offsets[index]], count, std::nanf(""));
      return OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(fired.size(), offsets.size());
    EXPECT_EQ(std::set<size_t>(fired.begin(), fired.end()).size(), offsets.size());
    InitializeWeights(GetParam(), 1, bound.weights);
  }
}

TEST_P(ModelTest, WeightsAreAnnouncedBeforeTheyAreRead) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 2, 7);
  const double expected = bound.Loss(batch);
  const std::vector<float> arriving = bound.weights;
  std::fill(bound.weights.begin(), bound.weights.end(), std::nanf(""));
  std::vector<size_t> offsets{0};
  for (const auto& parameter : bound.model->parameters()) {
    offsets.push_back(offsets.back() + static_cast<size_t>(parameter.count()));
  }
  const auto loss = bound.model->Forward(batch, [&](size_t first, size_t last) {
    for (size_t i = offsets[first]; i < offsets[last]; ++i) bound.weights[i] = arriving[i];
    return OkStatus();
  });
  EXPECT_EQ(loss.value(), expected);
  EXPECT_EQ(bound.weights, arriving) << "a parameter was never announced";
}

TEST_P(ModelTest, CallbackErrorsComeBack) {
  Bound bound(GetParam());
  const Batch batch = BatchFor(GetParam(), 2, 7);
  const auto loss =
      bound.model->Forward(batch, [](size_t, size_t) { return Aborted("removed from the view"); });
  EXPECT_EQ(loss.error(), Aborted("removed from the view"));
  EXPECT_EQ(bound.model->Backward(1, {}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(bound.model->Forward(batch, {}).has_value());
  int calls = 0;
  EXPECT_EQ(bound.model->Backward(1,
                                  [&](size_t) {
                                    ++calls;
                                    return Unavailable("gone");
                                  }),
            Unavailable("gone"));
  EXPECT_EQ(calls, 1);
}

TEST_P(ModelTest, RefusesTheOtherKindOfBatch) {
  Bound bound(GetParam());
  const bool gpt = GetParam().kind == ModelConfig::Kind::kGpt;
  const Batch other = gpt ? ImageBatch(2, 1) : TextBatch(2, 12, 1);
  EXPECT_EQ(bound.model->Forward(other, {}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bound.model->Evaluate(other).error().code(), StatusCode::kInvalidArgument);
}

TEST_P(ModelTest, ConfigSurvivesJson) {
  EXPECT_EQ(ParseModelConfig(ModelConfigJson(GetParam())).value(), GetParam());
}

TEST(GptTest, LaterTokensDoNotReachEarlierLogits) {
  Bound bound(SmallGpt());
  Rng rng(2);
  for (float& w : bound.weights) w += static_cast<float>(0.1 * rng.Normal());
  const Batch before = TextBatch(1, 12, 3);
  const std::vector<float> expected = bound.model->Logits(before).value();
  for (size_t changed = 0; changed < 12; ++changed) {
    Batch batch = before;
    batch.tokens[changed] = (batch.tokens[changed] + 1) % 256;
    const std::vector<float> found = bound.model->Logits(batch).value();
    for (size_t position = 0; position < 12; ++position) {
      const bool same =
          std::memcmp(&found[position * 256], &expected[position * 256], 256 * sizeof(float)) == 0;
      EXPECT_EQ(same, position < changed) << position << " after a change at " << changed;
    }
  }
}

TEST(GptTest, TheHeadIsTheTokenTable) {
  Bound bound(SmallGpt());
  for (const auto& parameter : bound.model->parameters()) {
    EXPECT_THAT(parameter.name, Not(HasSubstr("head")));
  }
  // A token that is no input, only a possible target, still gets a gradient in the one table.
  Batch batch = TextBatch(1, 12, 3);
  for (auto& token : batch.tokens) token %= 100;
  bound.Gradient(batch, 1);
  const std::span<const float> row = std::span(bound.gradients).subspan(200 * 16, 16);
  EXPECT_THAT(row, Contains(Not(0.0f)));
}

TEST(GptTest, OnlyMatricesAndTablesDecay) {
  const auto parameters = ModelParameters(SmallGpt());
  for (const auto& parameter : parameters) {
    EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
  }
}

TEST(GptTest, GenerationIsAFunctionOfTheSeedAndOutlivesTheContext) {
  Bound bound(SmallGpt());
  const GenerateOptions options{.prompt = "It is", .tokens = 40, .temperature = 1, .seed = 3};
  const std::string text = bound.model->Generate(options).value();
  EXPECT_EQ(text.size(), 40u);
  EXPECT_EQ(bound.model->Generate(options).value(), text);
  GenerateOptions other = options;
  other.seed = 4;
  EXPECT_NE(bound.model->Generate(other).value(), text);
  other.prompt.clear();
  EXPECT_THAT(bound.model->Generate(other).error().message(), HasSubstr("--prompt"));
}

TEST(GptTest, EvaluationCountsLossAndHits) {
  Bound bound(SmallGpt());
  const Batch batch = TextBatch(2, 12, 3);
  const EvaluationSum sum = bound.model->Evaluate(batch).value();
  EXPECT_EQ(sum.samples, 2u);
  EXPECT_EQ(sum.targets, 24u);
  EXPECT_LE(sum.correct, 24u);
  EXPECT_FLOAT_EQ(static_cast<float>(sum.loss), static_cast<float>(bound.Loss(batch)));
}

TEST(ModelConfigTest, SaysWhatIsWrong) {
  ModelConfig config = SmallGpt();
  config.gpt.heads = 3;
  EXPECT_THAT(ValidateModelConfig(config).message(), HasSubstr("multiple of heads = 3"));
  config = SmallGpt();
  config.gpt.layers = 0;
  EXPECT_THAT(ValidateModelConfig(config).message(), AllOf(HasSubstr("layers"), HasSubstr("0")));
  for (const char* text :
       {"", "[]", "{}", R"({"model":"cnn"})", R"({"model":"gpt","layers":2})",
        R"({"model":"gpt","layers":"2","heads":2,"width":16,"context":4,"vocabulary":256})",
        R"({"model":"mlp","features":3,"classes":2})",
        R"({"model":"mlp","features":3,"classes":2,"hidden":["x"]})"}) {
    const auto parsed = ParseModelConfig(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
  }
}

TEST(SamplerTest, TemperatureZeroTopKAndProportions) {
  const std::vector<float> logits{0.0f, std::log(2.0f), std::log(5.0f), -1.0f};
  Sampler greedy(0, 0, 1);
  EXPECT_EQ(greedy.Pick(logits), 2u);
  Sampler top(1, 2, 1);
  std::vector<int> counts(4);
  for (int i = 0; i < 7000; ++i) ++counts[top.Pick(logits)];
  EXPECT_EQ(counts[0] + counts[3], 0);
  EXPECT_THAT(counts[1], AllOf(Gt(1800), Lt(2200)));
  Sampler all(1, 0, 1);
  counts.assign(4, 0);
  for (int i = 0; i < 1000; ++i) ++counts[all.Pick(logits)];
  EXPECT_THAT(counts, Each(Gt(10)));
}

// Gradient checkpointing: the same bits, and a fraction of the activations.
TEST(RecomputeTest, GradientsAreTheSameAndLessIsKept) {
  ModelConfig config = SmallGpt();
  config.gpt.layers = 6;
  const Batch batch = TextBatch(4, 12, 3);
  Bound plain(config), recomputing(config, 1, {.recompute = true});
  plain.Gradient(batch, 8);
  recomputing.Gradient(batch, 8);
  EXPECT_EQ(plain.gradients, recomputing.gradients);
  EXPECT_EQ(plain.Loss(batch), recomputing.Loss(batch));

  const auto kept = [&](Bound& bound) {
    const int64_t bytes = BytesKeptBy([&] { (void)bound.Loss(batch); });
    EXPECT_TRUE(bound.model->Backward(1, {}).ok());
    return bytes;
  };
  const int64_t all = kept(plain), inputs = kept(recomputing);
  // The input of each block must be there, and the logits' part is the same.
  EXPECT_GE(inputs, 6 * 4 * 12 * 16 * 4);
  EXPECT_LT(inputs, all / 2) << "of " << all;
}

TEST(RecomputeTest, EveryGradientIsReportedOnceAndInOrder) {
  Bound plain(SmallGpt()), recomputing(SmallGpt(), 1, {.recompute = true});
  const Batch batch = TextBatch(2, 12, 3);
  std::vector<size_t> expected, found;
  const auto record = [&](Bound& bound, std::vector<size_t>* order) {
    EXPECT_TRUE(bound.model->Forward(batch, {}).has_value());
    EXPECT_TRUE(bound.model
                    ->Backward(1,
                               [order](size_t parameter) {
                                 order->push_back(parameter);
                                 return OkStatus();
                               })
                    .ok());
  };
  record(plain, &expected);
  record(recomputing, &found);
  EXPECT_EQ(found.size(), plain.model->parameters().size());
  EXPECT_EQ(std::set<size_t>(found.begin(), found.end()).size(), found.size());
  // Later blocks come first, with either.
  const auto place = [](const std::vector<size_t>& order, size_t parameter) {
    return std::find(order.begin(), order.end(), parameter) - order.begin();
  };
  EXPECT_LT(place(found, 14), place(found, 2));
  EXPECT_LT(place(expected, 14), place(expected, 2));
}

TEST_P(ModelTest, Bf16ProductsComeCloseToFp32) {
  const Batch batch = BatchFor(GetParam(), 8, 3);
  Bound fp32(GetParam());
  Bound bf16(GetParam(), 1, {.recompute = true, .compute = ModelOptions::Compute::kBf16});
  fp32.Gradient(batch, 1);
  bf16.Gradient(batch, 1);
  EXPECT_NE(fp32.gradients, bf16.gradients) << "nothing was rounded to bf16";
  double difference = 0, norm = 0;
  for (size_t i = 0; i < fp32.gradients.size(); ++i) {
    difference += std::pow(double{fp32.gradients[i]} - double{bf16.gradients[i]}, 2);
    norm += std::pow(double{fp32.gradients[i]}, 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 0.05);
  EXPECT_NEAR(fp32.Loss(batch), bf16.Loss(batch), 0.02 * fp32.Loss(batch));
}

}  // namespace
}  // namespace slackline::worker
