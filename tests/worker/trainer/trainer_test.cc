#include "worker/trainer/trainer.h"

#include <gmock/gmock.h>

#include <cstring>

#include "common/random.h"
#include "tests/worker/data/data_test_util.h"
#include "tests/worker/trainer/fake_client.h"

namespace slackline::worker {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class TrainerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kContext = 8;

  TrainerTest() {
    std::string text;
    Rng rng(1);
    const std::vector<std::string> words{"the ", "rope ", "hangs ", "slack ", "and ", "low.\n"};
    while (text.size() < 3000) text += words[rng.Below(words.size())];
    WriteTestText(directory_.path(), {text}, {text.substr(0, 600)});
    data_ = OpenTrainingData(directory_.path()).value();

    options_.model.gpt = {
        .layers = 1, .heads = 2, .width = 8, .context = kContext, .vocabulary = 256};
    options_.gradient.batch = 4;
    options_.gradient.push_codec = CodecId::kFp32;
    options_.gradient.loss_scale = {.initial = 1, .growth_interval = 0};
    options_.sample.tokens = 10;
    options_.evaluate_samples = 8;
    options_.log_every = 0;

    cluster_.job.set_model("gpt");
    cluster_.job.set_steps(4);
    cluster_.job.set_seed(3);
    cluster_.job.set_chunk_bytes(1024);  // 13 chunks.
    cluster_.job.set_train_samples(3000 / kContext - 1);
    cluster_.job.set_lease_samples(6);
  }

  Status Run(FakeClient& client) {
    Trainer trainer(options_, *data_, client, stop_);
    return trainer.Run();
  }
  // Runs a whole job with the present options.
  std::unique_ptr<FakeClient> Train() {
    auto client = std::make_unique<FakeClient>(cluster_);
    const Status status = Run(*client);
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }

  TempDirectory directory_;
  std::unique_ptr<TrainingData> data_;
  TrainerOptions options_;
  FakeCluster cluster_;
  std::atomic<bool> stop_{false};
};

TEST_F(TrainerTest, TrainsEvaluatesSamplesAndLeaves) {
  cluster_.job.set_steps(60);
  cluster_.learning_rate = 0.5f;
  const auto client = Train();
  ASSERT_EQ(client->steps().size(), 60u);
  ASSERT_EQ(client->reports().size(), 60u);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(client->steps()[i].clock, static_cast<Clock>(i));
    EXPECT_EQ(client->steps()[i].options.weight, 4);
    EXPECT_EQ(client->reports()[i].clock(), static_cast<Clock>(i));
    EXPECT_EQ(client->reports()[i].samples(), 4u);
    EXPECT_EQ(client->reports()[i].tokens(), 4u * kContext);
    EXPECT_GT(client->reports()[i].gradient_norm(), 0);
    EXPECT_FALSE(client->reports()[i].empty());
  }
  EXPECT_NEAR(client->reports().front().loss(), std::log(256), 0.1);
  EXPECT_LT(client->reports().back().loss(), 0.8 * client->reports().front().loss());
  EXPECT_THAT(client->calls(), ElementsAre("barrier trained", "final", "leave done: trained"));
  EXPECT_TRUE(client->final_report().has_validation_loss());
  EXPECT_LT(client->final_report().validation_loss(), 4.5);
  EXPECT_FALSE(client->final_report().sample().empty());
}

TEST_F(TrainerTest, LocalStepsTrainWithAClockForHOfThem) {
  cluster_.job.set_steps(12);
  cluster_.learning_rate = 1;
  options_.local.steps = 5;
  options_.local.optimizer.kind = OptimizerKind::kSgd;
  options_.local.schedule.learning_rate = 0.5;
  const auto client = Train();
  ASSERT_EQ(client->reports().size(), 12u);
  EXPECT_EQ(client->reports()[0].samples(), 5u * 4);
  EXPECT_EQ(client->steps()[0].options.weight, 5 * 4);
  EXPECT_LT(client->reports().back().loss(), 0.8 * client->reports().front().loss());
  EXPECT_LT(client->final_report().validation_loss(), 4.5) << "of the servers' weights";
}

TEST_F(TrainerTest, OnlyTheLowestRankReports) {
  cluster_.lowest = false;
  EXPECT_THAT(Train()->calls(), ElementsAre("barrier trained", "leave done: trained"));
}

TEST_F(TrainerTest, OverlapPushesTheLastLayersFirstAndChangesNoBit) {
  options_.gradient.overlap = true;
  const auto overlapped = Train();
  options_.gradient.overlap = false;
  const auto exact = Train();
  EXPECT_EQ(overlapped->master(), exact->master());
  EXPECT_GT(overlapped->steps()[0].order.front(), overlapped->steps()[0].order.back());
  EXPECT_LT(exact->steps()[0].order.front(), exact->steps()[0].order.back());
}

TEST_F(TrainerTest, ForwardWaitsForEveryChunkBeforeTheStepIsClosed) {
  const auto client = Train();
  for (size_t i = 0; i + 1 < client->steps().size(); ++i) {
    const auto& waited = client->steps()[i].waited_first;
    EXPECT_EQ(waited.size(), client->chunk_order().size());
    EXPECT_EQ(waited.front(), 0u) << "the first layer's weights come first";
  }
}

TEST_F(TrainerTest, AccumulatingWorkerPushesTheTreeSumOfManyWorkers) {
  cluster_.job.set_steps(1);
  for (const bool overlap : {false, true}) {
    options_.gradient.overlap = overlap;
    std::vector<std::vector<float>> pushed;
    cluster_.workers = 4;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      cluster_.rank = rank;
      pushed.push_back(Train()->steps()[0].pushed);
    }
    cluster_.workers = 1;
    cluster_.rank = 0;
    options_.gradient.micro_batches = 4;
    const auto one = Train();
    options_.gradient.micro_batches = 1;
    EXPECT_EQ(one->steps()[0].options.weight, 16);
    for (size_t i = 0; i < pushed[0].size(); ++i) {
      ASSERT_EQ(one->steps()[0].pushed[i],
                (pushed[0][i] + pushed[1][i]) + (pushed[2][i] + pushed[3][i]));
    }
  }
}

TEST_F(TrainerTest, ExactClippingIsByMicroBatch) {
  cluster_.job.set_steps(1);
  options_.gradient.overlap = false;
  const auto free = Train();
  const double norm = free->reports()[0].gradient_norm();
  options_.gradient.clip_norm = norm / 4;
  const auto clipped = Train();
  EXPECT_DOUBLE_EQ(clipped->reports()[0].gradient_norm(), norm) << "reported before clipping";
  for (size_t i = 0; i < free->steps()[0].pushed.size(); ++i) {
    ASSERT_FLOAT_EQ(clipped->steps()[0].pushed[i], free->steps()[0].pushed[i] / 4);
  }
}

TEST_F(TrainerTest, OverlappedClippingUsesThePreviousNorm) {
  cluster_.learning_rate = 0;  // The same weights, other samples, in every step.
  cluster_.job.set_steps(3);
  const auto free = Train();
  options_.gradient.clip_norm = 0.5 * free->reports()[0].gradient_norm();
  const auto clipped = Train();
  const auto factor = [&](size_t norm_step) {
    return static_cast<float>(options_.gradient.clip_norm /
                              free->reports()[norm_step].gradient_norm());
  };
  const size_t probe = 3;
  ASSERT_NE(free->steps()[0].pushed[probe], 0);
  // Step 0 has no previous norm and is clipped by its own.
  for (const auto& [step, norm_step] : {std::pair{0u, 0u}, {1u, 0u}, {2u, 1u}}) {
    EXPECT_FLOAT_EQ(clipped->steps()[step].pushed[probe],
                    free->steps()[step].pushed[probe] * factor(norm_step))
        << step;
  }
}

TEST_F(TrainerTest, OverflowPushesAnEmptyStepAndLowersTheScale) {
  options_.gradient.push_codec = CodecId::kFp16;
  options_.gradient.loss_scale = {
      .initial = 16777216, .min = 1, .max = 16777216, .growth_interval = 1000};
  options_.gradient.overlap = false;
  cluster_.job.set_steps(16);
  const auto client = Train();
  size_t empty = 0;
  while (client->steps()[empty].options.empty) ++empty;
  ASSERT_GT(empty, 0u);
  ASSERT_LT(empty, 16u);
  for (size_t i = 0; i < 16; ++i) {
    const auto& step = client->steps()[i];
    EXPECT_EQ(step.clock, static_cast<Clock>(i)) << "an empty step moves the clock";
    EXPECT_EQ(step.options.scale, std::ldexp(16777216.0f, -static_cast<int>(std::min(i, empty))));
    EXPECT_EQ(step.options.empty, i < empty);
    EXPECT_EQ(step.options.weight, i < empty ? 0 : 4);
    EXPECT_EQ(client->reports()[i].empty(), i < empty);
  }
}

TEST_F(TrainerTest, ALateOverflowEmptiesTheRestOfTheStep) {
  options_.gradient.loss_scale = {.initial = 8, .min = 1, .max = 8, .growth_interval = 1000};
  FakeClient* fake = nullptr;
  // Backward adds to what is in the gradient: a chunk in the middle overflows after others left.
  cluster_.on_push = [&fake](ChunkIndex) {
    if (fake->steps().size() == 2) {
      fake->gradients()[6 * 256] = std::numeric_limits<float>::infinity();
    }
    return OkStatus();
  };
  FakeClient client(cluster_);
  fake = &client;
  ASSERT_TRUE(Run(client).ok());
  ASSERT_EQ(client.steps().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto& step = client.steps()[i];
    EXPECT_FALSE(step.options.empty) << "nothing was known when the step began";
    bool overflow = false;
    size_t with_gradient = 0;
    for (const ChunkIndex chunk : step.order) {
      overflow = overflow || step.empty[chunk];
      EXPECT_EQ(step.empty[chunk], overflow) << "a gradient left after the overflow";
      with_gradient += !step.empty[chunk];
    }
    EXPECT_GT(with_gradient, 0u);
    EXPECT_EQ(overflow, i == 1);
    EXPECT_EQ(client.reports()[i].empty(), i == 1);
    EXPECT_EQ(step.options.scale, i <= 1 ? 8 : 4);
  }
}

TEST_F(TrainerTest, LeasedSamplesAreFinishedAfterTheirStep) {
  cluster_.job.set_staleness(3);
  cluster_.job.set_steps(30);
  const auto client = Train();
  const auto finished = client->finished_leases();
  EXPECT_THAT(finished, Not(IsEmpty()));
  EXPECT_TRUE(std::is_sorted(finished.begin(), finished.end()));
  // 120 samples in leases of 6 (a pass ends with a shorter one).
  EXPECT_LE(finished.size(), 21u);
}

TEST_F(TrainerTest, AStopFinishesTheStepAndLeavesEarly) {
  cluster_.job.set_steps(1000);
  cluster_.on_finish = [this](Clock clock) {
    if (clock == 2) stop_ = true;
    return OkStatus();
  };
  FakeClient client(cluster_);
  EXPECT_TRUE(Run(client).ok());
  EXPECT_EQ(client.steps().size(), 4u) << "the step under way is finished";
  EXPECT_EQ(client.reports().size(), 4u);
  EXPECT_THAT(client.calls(), ElementsAre("leave early: stopped by a signal"));
}

TEST_F(TrainerTest, AFailureIsReturnedAndTheWorkerLeaves) {
  cluster_.on_push = [](ChunkIndex) { return Unavailable("shard 1 is gone"); };
  FakeClient client(cluster_);
  EXPECT_EQ(Run(client), Unavailable("shard 1 is gone"));
  EXPECT_THAT(client.calls(), ElementsAre("leave early: shard 1 is gone"));
  EXPECT_TRUE(client.cancelled());
}

TEST_F(TrainerTest, RemovedFromTheViewSaysNoGoodbye) {
  cluster_.on_finish = [](Clock) { return Aborted("the lease expired"); };
  FakeClient client(cluster_);
  EXPECT_EQ(Run(client), Aborted("the lease expired"));
  EXPECT_THAT(client.calls(), IsEmpty());
}

TEST_F(TrainerTest, AJoinerAfterTheLastClockOnlyEvaluates) {
  cluster_.first_clock = 4;
  const auto client = Train();
  EXPECT_THAT(client->steps(), IsEmpty());
  EXPECT_THAT(client->calls(), Contains("leave done: trained"));
}

TEST(Utf8Test, ReplacesWhatIsNotText) {
  const std::string good = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82";
  EXPECT_EQ(ToValidUtf8(good), good);
  EXPECT_EQ(ToValidUtf8("a\x80z"), "a?z");
  EXPECT_EQ(ToValidUtf8("\xC0\xAF"), "??");            // Overlong.
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), "???");       // A surrogate.
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), "????");  // Above U+10FFFF.
  EXPECT_EQ(ToValidUtf8("\xE2\x82"), "??");            // Cut off.
}

}  // namespace
}  // namespace slackline::worker
