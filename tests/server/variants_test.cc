// The variants of the update through a real shard, against their formulas in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/random.h"
#include "server/late_push.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

using testing::ElementsAre;
using Vector = std::vector<double>;

constexpr size_t kCount = 37;  // No multiple of a vector's length.

std::vector<float> Gradient(Rng& rng) {
  std::vector<float> gradient(kCount);
  for (float& g : gradient) g = static_cast<float>(rng.Normal());
  return gradient;
}

// Workers 0..W-1 that push in any order to one chunk, with what each has read last.
class Workers {
 public:
  Workers(const control::JobSpec& job, uint32_t workers)
      : t(TestMap(job, {kCount}), workers), clocks(workers, 0), versions(workers, 0) {
    EXPECT_TRUE(t.install_status.ok()) << t.install_status;
    t.InitAll(1);
    for (uint32_t w = 0; w < workers; ++w) {
      t.Pull(w, 0, 0);
      Read(w);
    }
  }
  // Pushes and reads; `version` < 0: as last read.
  void Push(WorkerId worker, const std::vector<float>& gradient, double weight = 1,
            int64_t version = -1) {
    proto::WireHeader header = t.Header(proto::MessageKind::kPushPull, worker, 0, clocks[worker]++);
    header.codec = CodecId::kFp32;
    header.weight = weight;
    header.version = version < 0 ? versions[worker] : static_cast<uint64_t>(version);
    header.payload_bytes = kCount * sizeof(float);
    t.channel(worker).Arrive(header, ShardHarness::BytesOf(gradient));
    Read(worker);
  }
  uint64_t Version() const { return t.shard->chunks()->at(0).version; }
  void ExpectWeights(const Vector& expected, double tolerance = 1e-5) const {
    const std::vector<float> weights = t.Weights(0);
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(weights[i], expected[i], tolerance) << i;
  }

  ShardHarness t;
  std::vector<Clock> clocks;
  std::vector<uint64_t> versions;

 private:
  void Read(WorkerId worker) {
    ASSERT_FALSE(t.channel(worker).replies.empty());
    versions[worker] = t.channel(worker).replies.back().header.version;
    t.SendAll();
  }
};

control::JobSpec AsyncJob(double rate) {
  control::JobSpec job = TestJob(-1);
  job.set_async_scale_sum(true);
  job.mutable_schedule()->set_learning_rate(rate);
  return job;
}

TEST(StalenessRate, TheDivisorIsOneUpToTheWorkersAndGrowsThen) {
  EXPECT_EQ(StalenessDivisor(0, 4), 1);
  EXPECT_EQ(StalenessDivisor(4, 4), 1);
  EXPECT_EQ(StalenessDivisor(6, 4), 1.5);
  EXPECT_EQ(StalenessDivisor(40, 4), 10);
}

// Pushes as the worker; `apply` gets the gradient and the updates that it missed.
template <typename Apply>
void Push(Workers& workers, WorkerId worker, Rng& rng, const Apply& apply) {
  const auto tau = static_cast<double>(workers.Version() - workers.versions[worker]);
  const std::vector<float> gradient = Gradient(rng);
  workers.Push(worker, gradient);
  apply(gradient, tau);
}

TEST(StalenessRate, APushIsDividedByWhatItMissed) {
  for (const bool on : {true, false}) {
    control::JobSpec job = AsyncJob(0.25);
    job.set_staleness_rate(on);
    Workers workers(job, 2);
    Vector expected(kCount, 1);
    Rng rng(7);
    const auto apply = [&](const std::vector<float>& gradient, double tau) {
      const double rate = 0.25 / (on ? std::max(1.0, tau / 2) : 1);
      for (size_t i = 0; i < kCount; ++i) expected[i] -= rate * gradient[i];
    };
    for (const int late : {0, 1, 3, 9, 20}) {
      for (int i = 0; i < late; ++i) Push(workers, 0, rng, apply);
      ASSERT_GE(workers.Version(), workers.versions[1] + static_cast<uint64_t>(late));
      Push(workers, 1, rng, apply);
      workers.ExpectWeights(expected);
    }
  }
}

TEST(StalenessRate, AVersionFromTheFutureIsNoStaleness) {
  control::JobSpec job = AsyncJob(1);
  job.set_staleness_rate(true);
  Workers workers(job, 1);
  workers.Push(0, std::vector<float>(kCount, 0.5f), 1, 1 << 30);
  workers.ExpectWeights(Vector(kCount, 0.5));
}

TEST(DelayCompensation, FollowsTheFormula) {
  constexpr double kLambda = 0.5, kRate = 0.125;
  control::JobSpec job = AsyncJob(kRate);
  job.set_delay_compensation(kLambda);
  Workers workers(job, 3);
  Vector weights(kCount, 1);
  std::vector<Vector> backups(3, weights);
  Rng rng(3);
  for (int step = 0; step < 200; ++step) {
    const auto worker = static_cast<WorkerId>(rng.Below(3));
    const double samples = 1 + static_cast<double>(rng.Below(4));
    std::vector<float> gradient = Gradient(rng);
    workers.Push(worker, gradient, samples);
    for (size_t i = 0; i < kCount; ++i) {
      const double g = gradient[i] / samples;
      weights[i] -= kRate * (g + kLambda * g * g * (weights[i] - backups[worker][i]));
    }
    backups[worker] = weights;
    workers.ExpectWeights(weights, 1e-4);
  }
}

TEST(DelayCompensation, WithoutTheWorkersWeightsThePlainGradientCounts) {
  control::JobSpec job = AsyncJob(1);
  job.set_delay_compensation(100);
  Workers workers(job, 2);
  workers.Push(0, std::vector<float>(kCount, 0.25f));
  workers.Push(1, std::vector<float>(kCount, 0.25f), 1, 77);  // It never had that version.
  workers.ExpectWeights(Vector(kCount, 0.5));
}

TEST(DelayCompensation, KeepsOneCopyAWorkerAndNoMore) {
  control::JobSpec job = AsyncJob(1);
  job.set_delay_compensation(1);
  Workers workers(job, 3);
  const auto backups = WeightBackups::Create(workers.t.endpoint, *workers.t.shard->chunks(), 3);
  ASSERT_TRUE(backups.has_value());
  EXPECT_EQ((*backups)->size_bytes(), 3 * kCount * sizeof(float));
  (*backups)->Keep(*workers.t.shard->chunks(), 0, 99);  // A rank that there is not.
  EXPECT_EQ((*backups)->Find(0, 99, 1), nullptr);
}

TEST(DelayedNesterov, FollowsTheAlgorithmUnderAnyOrderOfWorkers) {
  constexpr double kRate = 0.125, kMomentum = 0.9, kActivation = 0.1;
  for (const double activation : {0.0, kActivation}) {
    control::JobSpec job = TestJob(-1);  // Nothing divides by the workers twice.
    job.mutable_schedule()->set_learning_rate(kRate);
    job.mutable_optimizer()->set_name("delayed_nesterov");
    job.mutable_optimizer()->set_momentum(kMomentum);
    job.mutable_optimizer()->set_activation(activation);
    Workers workers(job, 3);  // And so is the period.
    Vector weights(kCount, 1), momentum(kCount, 0), delayed(kCount, 0);
    Rng rng(5);
    for (int t = 0; t < 100; ++t) {
      const std::vector<float> gradient = Gradient(rng);
      workers.Push(static_cast<WorkerId>(rng.Below(3)), gradient);
      const bool ends = (t + 1) % 3 == 0;
      for (size_t i = 0; i < kCount; ++i) {
        delayed[i] += gradient[i];
        if (ends) {
          momentum[i] = kMomentum * momentum[i] + delayed[i] / 3;
          delayed[i] = 0;
        }
        const double share = ends ? 1 - 3 * activation + activation : activation;
        weights[i] -= kRate * (share * kMomentum * momentum[i] + gradient[i] / 3);
      }
      workers.ExpectWeights(weights, 1e-4);
    }
  }
}

// DiLoCo's outer step: what workers push is how far they went, times their samples.
TEST(OuterNesterov, StepsAlongTheMeanDifferenceWeightedBySamples) {
  constexpr double kRate = 0.7, kMomentum = 0.9;
  control::JobSpec job = TestJob(0);
  job.mutable_schedule()->set_learning_rate(kRate);
  job.mutable_optimizer()->set_name("nesterov");
  job.mutable_optimizer()->set_momentum(kMomentum);
  ShardHarness t(TestMap(job, {kCount}), 2);
  t.InitAll(1);
  Vector weights(kCount, 1), momentum(kCount, 0);
  Rng rng(9);
  for (Clock clock = 0; clock < 20; ++clock) {
    const double samples[] = {8, 24};
    Vector mean(kCount, 0);
    for (WorkerId worker = 0; worker < 2; ++worker) {
      std::vector<float> difference = Gradient(rng);
      for (size_t i = 0; i < kCount; ++i) mean[i] += difference[i] * samples[worker] / 32;
      for (float& d : difference) d *= static_cast<float>(samples[worker]);
      t.PushPull(worker, 0, clock, difference, samples[worker]);
    }
    t.SendAll();
    for (size_t i = 0; i < kCount; ++i) {
      momentum[i] = kMomentum * momentum[i] + mean[i];
      weights[i] -= kRate * (mean[i] + kMomentum * momentum[i]);
      ASSERT_NEAR(t.Weights(0)[i], weights[i], 1e-4);
    }
  }
}

// ---- A quorum ----

control::JobSpec QuorumJob(uint32_t quorum, int64_t grace_ms) {
  control::JobSpec job = TestJob(0);
  job.set_steps(10);
  job.set_quorum(quorum);
  job.set_grace_ms(grace_ms);
  return job;
}

TEST(Quorum, ARoundClosesAfterTheGraceAndLatecomersJoinTheNext) {
  ShardHarness t(TestMap(QuorumJob(2, 20), {1}), 3);
  ASSERT_TRUE(t.install_status.ok()) << t.install_status;
  t.InitAll(10);
  EXPECT_EQ(t.shard->NextDeadline(), kNever);
  const uint64_t a = t.PushPull(0, 0, 0, {2 * 1}, 1);
  t.time.now += kNsPerSecond;
  t.shard->OnTick(t.time.now);
  EXPECT_THAT(t.Weights(0), ElementsAre(10)) << "one is no quorum, however long it waits";
  const uint64_t b = t.PushPull(1, 0, 0, {5 * 3}, 3);
  EXPECT_EQ(t.shard->NextDeadline(), t.time.now + 20 * kNsPerMs);
  t.time.now += 19 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  EXPECT_EQ(t.ReplyTo(0, a), nullptr);
  t.time.now += kNsPerMs;
  t.shard->OnTick(t.time.now);
  ASSERT_NE(t.ReplyTo(0, a), nullptr);
  ASSERT_NE(t.ReplyTo(1, b), nullptr);
  EXPECT_EQ(t.ReplyTo(1, b)->header.min_clock, kNoClock) << "worker 2 has given nothing yet";
  EXPECT_THAT(t.Weights(0), ElementsAre(10 - 17.0f / 4));  // Weighted by the samples behind it.
  t.SendAll();
  EXPECT_EQ(t.shard->NextDeadline(), kNever);
  // The late one joins the second round, with its first clock.
  const uint64_t c = t.PushPull(2, 0, 0, {4}, 1);
  EXPECT_EQ(t.ReplyTo(2, c), nullptr);
  t.PushPull(0, 0, 1, {4}, 1);
  t.PushPull(1, 0, 1, {4}, 1);  // All are there: no grace.
  ASSERT_NE(t.ReplyTo(2, c), nullptr);
  EXPECT_EQ(t.ReplyTo(2, c)->header.min_clock, 0);
  EXPECT_THAT(t.Weights(0), ElementsAre(10 - 17.0f / 4 - 4));
}

TEST(Quorum, APushThatNoCopyIsFreeForJoinsWhenOneIs) {
  ShardHarness t(TestMap(QuorumJob(1, 10), {1}), 2);
  t.InitAll(0);
  // Two replies that do not leave pin both copies.
  for (Clock clock = 0; clock < 2; ++clock) {
    t.PushPull(0, 0, clock, {1});
    t.time.now += 10 * kNsPerMs;
    t.shard->OnTick(t.time.now);
  }
  ASSERT_THAT(t.Weights(0), ElementsAre(-2));
  t.PushPull(0, 0, 2, {1});
  t.time.now += 10 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  EXPECT_THAT(t.Weights(0), ElementsAre(-2));
  t.SendAll();
  t.time.now += 10 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  t.time.now += 10 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  EXPECT_THAT(t.Weights(0), ElementsAre(-3));
}

TEST(Quorum, WhoIsDoneIsNotWaitedFor) {
  control::JobSpec job = QuorumJob(2, 10);
  job.set_steps(1);
  ShardHarness t(TestMap(job, {1}), 3);
  t.InitAll(0);
  t.PushPull(0, 0, 0, {1});
  t.PushPull(1, 0, 0, {1});
  t.time.now += 10 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  // Alone it is no quorum, but nobody else will ever come.
  const uint64_t c = t.PushPull(2, 0, 0, {1});
  EXPECT_NE(t.ReplyTo(2, c), nullptr);
  EXPECT_THAT(t.Weights(0), ElementsAre(-2));
}

// Keeps the one chunk that it is given.
class OneCut final : public CheckpointSink {
 public:
  float* AcquireBuffer() override { return buffer.data(); }
  void Submit(ChunkCut cut) override { cuts.push_back(std::move(cut)); }
  void Finish(const Status& status) override { finished = status.ok(); }
  std::vector<float> buffer = std::vector<float>(8);
  std::vector<ChunkCut> cuts;
  bool finished = false;
};

TEST(Quorum, ACheckpointHoldsWhatIsInClosedRoundsOnly) {
  ShardHarness t(TestMap(QuorumJob(2, 20), {1}), 3);
  t.InitAll(10);
  t.PushPull(0, 0, 0, {1});
  t.PushPull(1, 0, 0, {1});
  t.time.now += 20 * kNsPerMs;
  t.shard->OnTick(t.time.now);
  t.SendAll();
  t.PushPull(0, 0, 1, {5});  // In the open round.
  OneCut sink;
  t.shard->BeginCheckpoint(1, 0, false, &sink);
  t.shard->OnTick(t.time.now);
  ASSERT_TRUE(sink.finished);
  ASSERT_EQ(sink.cuts.size(), 1u);
  EXPECT_EQ(sink.buffer[0], 9);
  ASSERT_EQ(sink.cuts[0].watermarks.size(), 3u);
  EXPECT_EQ(sink.cuts[0].watermarks[0].clock, 0);
  EXPECT_EQ(sink.cuts[0].watermarks[1].clock, 0);
  EXPECT_EQ(sink.cuts[0].watermarks[2].clock, kNoClock);
}

TEST(Variants, WhatDoesNotFitIsRefusedWithItsReason) {
  const auto reason = [](const control::JobSpec& job) {
    return ShardHarness(TestMap(job, {1}), 2).install_status.message();
  };
  control::JobSpec quorum = TestJob(3);
  quorum.set_quorum(2);
  EXPECT_THAT(reason(quorum), testing::HasSubstr("needs staleness 0 (BSP)"));
  control::JobSpec grace = QuorumJob(2, -1);
  EXPECT_THAT(reason(grace), testing::HasSubstr("grace_ms -1"));
  control::JobSpec late = TestJob(0);
  late.set_staleness_rate(true);
  EXPECT_THAT(reason(late), testing::HasSubstr("under BSP no push is late"));
  control::JobSpec lambda = AsyncJob(1);
  lambda.set_delay_compensation(-1);
  EXPECT_THAT(reason(lambda), testing::HasSubstr("delay_compensation -1"));
}

}  // namespace
}  // namespace slackline::server
