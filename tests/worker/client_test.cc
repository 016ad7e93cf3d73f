// The client against the real coordinator and real shards, all in this process.
#include "worker/client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "common/counting_allocator.h"
#include "common/random.h"
#include "tests/worker/fleet.h"

namespace slackline::worker {
namespace {

using ::testing::HasSubstr;

// Three tensors over several chunks of 256 elements.
const std::vector<TensorSpec> kTensors = {
    {"a", {20, 30}, true}, {"bias", {7}, false}, {"b", {500}, true}};
constexpr size_t kElements = 600 + 7 + 500;

ClientOptions Options(const Fleet& fleet, const control::JobSpec& job, int32_t rank = -1) {
  ClientOptions options;
  options.coordinator = fleet.address();
  options.wanted_rank = rank;
  options.job = job;
  return options;
}

float InitialWeight(size_t i) { return static_cast<float>(i % 13) * 0.25F - 1; }

// A "gradient" that depends on weights, micro-batch and clock, and is not exactly representable, so
// that the order of additions shows.
void MicroGradient(std::span<const float> weights, Clock clock, uint64_t micro_batch,
                   std::span<float> out) {
  Rng rng(Mix64(static_cast<uint64_t>(clock)) ^ Mix64(micro_batch + 1000));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = weights[i] * 0.1F + static_cast<float>(rng.Uniform() - 0.5);
  }
}

// Connects, declares, initializes. Failures end the test's thread with a message.
std::unique_ptr<Client> Join(const ClientOptions& options) {
  auto client = Client::Connect(options);
  EXPECT_TRUE(client) << client.error();
  if (!client) return nullptr;
  const Status declared = (*client)->Declare(kTensors);
  EXPECT_TRUE(declared.ok()) << declared;
  if (!declared.ok()) return nullptr;
  for (size_t i = 0; i < kElements; ++i) (*client)->weights()[i] = InitialWeight(i);
  const Status initialized = (*client)->Initialize();
  EXPECT_TRUE(initialized.ok()) << initialized;
  return initialized.ok() ? std::move(*client) : nullptr;
}

Result<StepStats> Step(Client& client, Clock clock, double weight) {
  SLACKLINE_RETURN_ERR_IF_ERROR(client.BeginStep(clock, {.weight = weight}));
  const auto order = client.chunk_order();
  // Backward finishes the last layers first.
  for (auto chunk = order.rbegin(); chunk != order.rend(); ++chunk) {
    SLACKLINE_RETURN_ERR_IF_ERROR(client.PushPull(*chunk));
  }
  return client.FinishStep();
}

// Says goodbye and waits for the job's end; the coordinator's exit code.
int Finish(std::unique_ptr<Client>* client, Fleet* fleet) {
  const Status left = (*client)->Leave(true, "");
  EXPECT_TRUE(left.ok()) << left;
  client->reset();
  return fleet->Join();
}

// Sums micro-gradients first..first+count in the tree of deterministic mode: equal halves of powers
// of two.
std::vector<float> TreeSum(std::span<const float> weights, Clock clock, uint64_t first,
                           uint64_t count) {
  std::vector<float> sum(weights.size());
  if (count == 1) {
    MicroGradient(weights, clock, first, sum);
    return sum;
  }
  const uint64_t half = count / 2;
  sum = TreeSum(weights, clock, first, half);
  const std::vector<float> right = TreeSum(weights, clock, first + half, half);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

// Trains `workers` workers over micro-batches that they share out; everyone's last weights.
std::vector<std::vector<float>> TrainBsp(uint32_t workers, uint64_t micro_batches, Clock steps) {
  Fleet fleet({.workers = workers});
  control::JobSpec job = MakeJob(0, steps);
  job.set_deterministic(true);
  std::vector<std::vector<float>> weights(workers);
  std::vector<Thread> threads;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back("worker", [&, rank] {
      auto client = Join(Options(fleet, job, static_cast<int32_t>(rank)));
      if (!client) return;
      const uint64_t share = micro_batches / workers;
      for (Clock clock = 0; clock < steps; ++clock) {
        const std::vector<float> sum = TreeSum(client->weights(), clock, rank * share, share);
        std::ranges::copy(sum, client->gradients().begin());
        const auto stats = Step(*client, clock, static_cast<double>(share));
        ASSERT_TRUE(stats) << stats.error();
        ASSERT_EQ(stats->staleness.size(), 1U);
        EXPECT_EQ(stats->staleness.begin()->first, 0) << "BSP sees everyone's last clock";
      }
      weights[rank].assign(client->weights().begin(), client->weights().end());
      EXPECT_TRUE(client->Leave(true, "").ok());
    });
  }
  threads.clear();
  EXPECT_EQ(fleet.Join(), 0);
  return weights;
}

TEST(ClientTest, BspOfManyWorkersEqualsOneThatAccumulatesBitwise) {
  constexpr Clock kSteps = 8;
  constexpr uint64_t kMicroBatches = 4;
  const auto one = TrainBsp(1, kMicroBatches, kSteps);
  // And both equal plain arithmetic: SGD with the mean gradient.
  std::vector<float> local(kElements);
  for (size_t i = 0; i < kElements; ++i) local[i] = InitialWeight(i);
  for (Clock clock = 0; clock < kSteps; ++clock) {
    const std::vector<float> sum = TreeSum(local, clock, 0, kMicroBatches);
    for (size_t i = 0; i < kElements; ++i) {
      local[i] -= 0.125F * (sum[i] * (1.0F / static_cast<float>(kMicroBatches)));
    }
  }
  for (size_t i = 0; i < kElements; ++i) EXPECT_NEAR(one[0][i], local[i], 1e-5) << i;
  for (const uint32_t workers : {2U, 4U}) {
    const auto many = TrainBsp(workers, kMicroBatches, kSteps);
    for (const std::vector<float>& weights : many) EXPECT_EQ(weights, one[0]) << workers;
  }
}

// Two workers, one of which waits at every step until the other has gone as far as it may.
void RunUneven(int32_t staleness, Clock bound) {
  constexpr Clock kSteps = 30;
  Fleet fleet({.workers = 2});
  const control::JobSpec job = MakeJob(staleness, kSteps);
  std::atomic<Clock> fast_clock{0};
  std::atomic<Clock> slow_clock{0};
  Clock largest = 0;
  Thread slow("slow", [&] {
    auto client = Join(Options(fleet, job, 0));
    if (!client) return;
    for (Clock clock = 0; clock < kSteps; ++clock) {
      // The fast one finishes clock + bound - 1 at most before this push.
      const Clock reachable = std::min(kSteps, bound < kSteps ? clock + bound : kSteps);
      for (Clock seen = fast_clock; seen < reachable; seen = fast_clock) fast_clock.wait(seen);
      const auto stats = Step(*client, clock, 1);
      ASSERT_TRUE(stats) << stats.error();
      slow_clock = clock + 1;
    }
    EXPECT_TRUE(client->Leave(true, "").ok());
  });
  Thread fast("fast", [&] {
    auto client = Join(Options(fleet, job, 1));
    if (!client) return;
    for (Clock clock = 0; clock < kSteps; ++clock) {
      const auto stats = Step(*client, clock, 1);
      ASSERT_TRUE(stats) << stats.error();
      EXPECT_LE(clock - slow_clock.load(), bound < kSteps ? bound : kSteps);
      for (const auto& [value, chunks] : stats->staleness) largest = std::max(largest, value);
      fast_clock = clock + 1;
      fast_clock.notify_all();
    }
    EXPECT_TRUE(client->Leave(true, "").ok());
  });
  slow.Join();
  fast.Join();
  EXPECT_EQ(fleet.Join(), 0);
  EXPECT_EQ(largest, bound) << "the fast worker went as far ahead as the mode allows, no further";
}

TEST(ClientTest, SspHoldsItsBoundAndUsesIt) { RunUneven(3, 3); }

TEST(ClientTest, AspWaitsForNobody) { RunUneven(-1, 30); }

TEST(ClientTest, HalfPrecisionTravelsEncodedAndArrivesDecoded) {
  Fleet fleet({.workers = 1});
  control::JobSpec job = MakeJob(0, 4);
  job.set_push_codec("fp16");
  job.set_pull_codec("bf16");
  auto client = Join(Options(fleet, job));
  ASSERT_TRUE(client);
  for (size_t i = 0; i < kElements; ++i) client->gradients()[i] = 0.5F * 1024;
  ASSERT_TRUE(client->BeginStep(0, {.weight = 2, .scale = 1024}).ok());
  for (const ChunkIndex chunk : client->chunk_order()) ASSERT_TRUE(client->PushPull(chunk).ok());
  const auto stats = client->FinishStep();
  ASSERT_TRUE(stats) << stats.error();
  EXPECT_EQ(stats->bytes_pushed, 2 * kElements);
  EXPECT_EQ(stats->bytes_pulled, 2 * kElements);
  // lr 0.125 x gradient (0.5 x 1024 / 1024 / 2) = 2^-5: exact in every format.
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(client->weights()[i], InitialWeight(i) - 0.03125F, 1.0F / 128) << i;
  }
  EXPECT_EQ(Finish(&client, &fleet), 0);
}

TEST(ClientTest, AnEmptyStepMovesTheClockAndNothingElse) {
  Fleet fleet({.workers = 1});
  auto client = Join(Options(fleet, MakeJob(0, 2)));
  ASSERT_TRUE(client);
  std::ranges::fill(client->gradients(), NAN);  // Not read.
  ASSERT_TRUE(client->BeginStep(0, {.weight = 0, .empty = true}).ok());
  for (const ChunkIndex chunk : client->chunk_order()) ASSERT_TRUE(client->PushPull(chunk).ok());
  const auto stats = client->FinishStep();
  ASSERT_TRUE(stats) << stats.error();
  EXPECT_EQ(stats->bytes_pushed, 0U);
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(client->weights()[i], InitialWeight(i));
  std::ranges::fill(client->gradients(), 1.0F);
  ASSERT_TRUE(Step(*client, 1, 1));
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(client->weights()[i], InitialWeight(i) - 0.125F);
  EXPECT_EQ(Finish(&client, &fleet), 0);
}

TEST(ClientTest, AGradientThatIsNotFiniteIsNamedAndTrainingGoesOn) {
  Fleet fleet({.workers = 1});
  auto client = Join(Options(fleet, MakeJob(0, 2)));
  ASSERT_TRUE(client);
  std::ranges::fill(client->gradients(), 1.0F);
  client->tensor_gradients(1)[3] = INFINITY;
  const auto refused = Step(*client, 0, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("'bias'"));
  client->tensor_gradients(1)[3] = 1;
  const auto stats = Step(*client, 1, 1);
  ASSERT_TRUE(stats) << stats.error();
  EXPECT_EQ(client->tensor_weights(1)[3], InitialWeight(603) - 0.125F);  // One step, not two.
  EXPECT_EQ(client->weights()[0], InitialWeight(0) - 0.25F);             // Another chunk: two.
  EXPECT_EQ(Finish(&client, &fleet), 0);
}

TEST(ClientTest, MisuseIsAnErrorAndLeavesTheStepAsItWas) {
  Fleet fleet({.workers = 1});
  auto client = Join(Options(fleet, MakeJob(0, 1)));
  ASSERT_TRUE(client);
  EXPECT_EQ(client->PushPull(0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->BeginStep(3, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client->BeginStep(0, {.weight = 0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client->BeginStep(0, {.scale = NAN}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(client->BeginStep(0, {}).ok());
  EXPECT_EQ(client->BeginStep(0, {}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->WaitChunk(0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->PushPull(99).code(), StatusCode::kNotFound);
  EXPECT_EQ(client->PullAll().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client->PushPull(0).ok());
  EXPECT_EQ(client->PushPull(0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->FinishStep().error().code(), StatusCode::kFailedPrecondition);
  for (const ChunkIndex chunk : client->chunk_order()) {
    if (chunk != 0) {
      ASSERT_TRUE(client->PushPull(chunk).ok());
    }
  }
  EXPECT_TRUE(client->FinishStep());
  EXPECT_TRUE(client->PullAll().ok());
  EXPECT_EQ(Finish(&client, &fleet), 0);
}

TEST(ClientTest, AnotherJobOrModelIsRefusedByName) {
  Fleet fleet({.workers = 1});
  const control::JobSpec job = MakeJob(0, 1);
  auto client = Join(Options(fleet, job));
  ASSERT_TRUE(client);
  control::JobSpec other_job = job;
  other_job.mutable_optimizer()->set_name("adagrad");
  other_job.mutable_optimizer()->set_epsilon(1e-8);
  const auto refused = Client::Connect(Options(fleet, other_job));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("adagrad"));
  auto other = Client::Connect(Options(fleet, job));
  ASSERT_TRUE(other) << other.error();
  auto tensors = kTensors;
  tensors[2].name = "another";
  const Status declared = (*other)->Declare(tensors);
  EXPECT_EQ(declared.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(declared.message(), HasSubstr("another"));
  EXPECT_TRUE((*other)->Leave(false, "refused").ok());
  other->reset();
  ASSERT_TRUE(Step(*client, 0, 1));
  EXPECT_EQ(Finish(&client, &fleet), 0);
}

TEST(ClientTest, AKilledWorkerLeavesWithinItsLeaseAndIsReplaced) {
  constexpr TimeNs kLease = kNsPerSecond;
  constexpr Clock kDeath = 3;
  for (const int32_t staleness : {0, 2}) {
    Fleet fleet({.workers = 2, .lease_ns = kLease});
    const control::JobSpec job = MakeJob(staleness, 1000);
    const SteadyTimeSource time;
    std::atomic<Clock> last_clock{INT64_MAX};
    std::atomic<bool> replaced{false};
    TimeNs longest_wait = 0;
    Thread survivor("survivor", [&] {
      auto client = Join(Options(fleet, job, 0));
      ASSERT_TRUE(client);
      for (Clock clock = 0; clock < last_clock; ++clock) {
        // Far enough to need the dead one's place to be free; then it waits for the replacement,
        // which is why the loop ends.
        if (clock == kDeath + 10) replaced.wait(false);
        const TimeNs start = time.NowNs();
        const auto stats = Step(*client, clock, 1);
        ASSERT_TRUE(stats) << stats.error();
        longest_wait = std::max(longest_wait, time.NowNs() - start);
      }
      EXPECT_TRUE(client->Leave(true, "").ok());
    });
    {
      auto victim = Join(Options(fleet, job, 1));
      ASSERT_TRUE(victim);
      EXPECT_EQ(victim->incarnation(), 1U);
      for (Clock clock = 0; clock < kDeath; ++clock) ASSERT_TRUE(Step(*victim, clock, 1));
      // Its end without a goodbye: connections break, the lease runs on.
    }
    auto client = Client::Connect(Options(fleet, job, 1));
    ASSERT_TRUE(client) << client.error();
    EXPECT_EQ((*client)->incarnation(), 2U);
    ASSERT_TRUE((*client)->Declare(kTensors).ok());
    const Clock first = (*client)->first_clock();
    EXPECT_GE(first, kDeath) << "a life starts above every clock of the one before";
    last_clock = first + 20;
    replaced = true;
    replaced.notify_all();
    ASSERT_TRUE((*client)->Initialize().ok());
    for (Clock clock = first; clock < last_clock; ++clock) {
      const auto stats = Step(**client, clock, 1);
      ASSERT_TRUE(stats) << stats.error();
    }
    EXPECT_TRUE((*client)->Leave(true, "").ok());
    client->reset();
    survivor.Join();
    EXPECT_EQ(fleet.Join(), 0);
    EXPECT_LT(longest_wait, 10 * kLease) << "no one waits for the dead";
  }
}

TEST(ClientTest, BarriersLeasesAndReportsReachTheCoordinator) {
  Fleet fleet({.workers = 2});
  control::JobSpec job = MakeJob(-1, 10);
  job.set_train_samples(100);
  job.set_lease_samples(10);
  std::atomic<int> arrived{0};
  std::atomic<uint64_t> samples{0};
  std::vector<Thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back("worker", [&, rank] {
      auto client = Join(Options(fleet, job, rank));
      ASSERT_TRUE(client);
      EXPECT_EQ(client->lowest_live_rank(), rank == 0);
      ++arrived;
      ASSERT_TRUE(client->Barrier("here", 30 * kNsPerSecond).ok());
      EXPECT_EQ(arrived, 2);
      const auto lease = client->LeaseData(5);
      ASSERT_TRUE(lease) << lease.error();
      std::vector<uint64_t> ids;
      for (const auto& range : lease->ranges()) {
        samples += range.end() - range.begin();
        ids.push_back(range.lease_id());
      }
      EXPECT_TRUE(client->FinishData(ids).ok());
      for (Clock clock = 0; clock < 10; ++clock) {
        ASSERT_TRUE(Step(*client, clock, 1));
        control::StepReport report;
        report.set_clock(clock);
        client->Report(report);
      }
      ASSERT_TRUE(client->Barrier("here", 30 * kNsPerSecond).ok());
      if (client->lowest_live_rank()) {
        control::FinalReport report;
        report.set_validation_loss(2.5);
        report.set_has_validation_loss(true);
        EXPECT_TRUE(client->ReportFinal(report).ok());
      }
      EXPECT_TRUE(client->Leave(true, "").ok());
    });
  }
  threads.clear();
  EXPECT_EQ(samples, 100U);
  EXPECT_EQ(fleet.Join(), 0);
}

void UseCodec(const std::string& push, control::JobSpec* job) {
  job->set_push_codec(push);
  job->set_topk_fraction(0.05);
  job->set_topk_warmup_steps(12);
  job->set_codec_min_elements(100);  // The bias stays fp16.
}

// With SGD and rate 1 the weights fall by the mean of what was sent: with the workers' residuals
// they account for every gradient. Exactly for codecs that select, on integers. With momentum at
// the worker they account for what momentum SGD moves by, where nothing is masked.
TEST(ClientTest, WhatWasSentAndTheResidualsAreTheGradients) {
  constexpr uint32_t kWorkers = 2;
  constexpr Clock kSteps = 40;
  for (const std::string& codec : {std::string("topk"), std::string("randk"), std::string("int8"),
                                   std::string("int4"), std::string("onebit")}) {
    for (const int staleness : {0, 1}) {
      SCOPED_TRACE(codec + " with staleness " + std::to_string(staleness));
      Fleet fleet({.workers = kWorkers});
      control::JobSpec job = MakeJob(staleness, kSteps);
      UseCodec(codec, &job);
      job.mutable_optimizer()->set_name("sgd");
      job.mutable_schedule()->set_learning_rate(1);
      const double momentum = codec == "onebit" ? 0.5 : 0;
      std::vector<std::vector<double>> kept(kWorkers), pushed(kWorkers);
      std::vector<float> weights;
      std::vector<Thread> threads;
      for (uint32_t worker = 0; worker < kWorkers; ++worker) {
        threads.emplace_back("worker", [&, worker] {
          ClientOptions options = Options(fleet, job, static_cast<int32_t>(worker));
          options.worker_momentum = momentum;
          auto client = Join(options);
          ASSERT_TRUE(client);
          pushed[worker].resize(kElements);
          std::vector<double> velocity(kElements);
          Rng rng(worker);
          for (Clock clock = 0; clock < kSteps; ++clock) {
            const float scale = clock < 10 ? 1.0F : 16.0F;
            for (size_t i = 0; i < kElements; ++i) {
              const float value = static_cast<float>(rng.Below(9)) - 4;
              velocity[i] = momentum * velocity[i] + value;
              pushed[worker][i] += velocity[i];
              client->gradients()[i] = value * scale;
            }
            ASSERT_TRUE(client->BeginStep(clock, {.weight = 1, .scale = scale}).ok());
            for (const ChunkIndex k : client->chunk_order()) {
              ASSERT_TRUE(client->PushPull(k).ok());
            }
            ASSERT_TRUE(client->FinishStep());
          }
          kept[worker].assign(client->residual().begin(), client->residual().end());
          ASSERT_EQ(kept[worker].size(), kElements);
          ASSERT_TRUE(client->Barrier("end", 30 * kNsPerSecond).ok());
          if (worker == 0) {
            ASSERT_TRUE(client->PullAll().ok());
            weights.assign(client->weights().begin(), client->weights().end());
          }
          EXPECT_TRUE(client->Leave(true, "").ok());
        });
      }
      threads.clear();
      EXPECT_EQ(fleet.Join(), 0);
      ASSERT_EQ(weights.size(), kElements);
      const bool exact = codec == "topk" || codec == "randk";
      double dropped = 0;
      for (size_t i = 0; i < kElements; ++i) {
        const double sent = (InitialWeight(i) - weights[i]) * kWorkers;
        const double residual = kept[0][i] + kept[1][i];
        const double gradient = pushed[0][i] + pushed[1][i];
        ASSERT_NEAR(sent + residual, gradient, exact ? 0 : 5e-3) << "element " << i;
        dropped += std::abs(residual);
      }
      EXPECT_GT(dropped, 0) << "nothing was dropped: the test tests nothing";
    }
  }
}

// Weights in a lossy codec follow the master: what a step drops comes with later ones, so that once
// gradients are zero readers converge to it, and all readers hold the same bits.
TEST(ClientTest, ReadersOfLossyWeightsHoldTheSameBitsAndConverge) {
  constexpr uint32_t kWorkers = 2;
  constexpr Clock kSteps = 20;
  constexpr Clock kQuiet = 60;
  for (const std::string& codec : {std::string("int8"), std::string("int4"), std::string("topk")}) {
    for (const int staleness : {0, 2, -1}) {
      SCOPED_TRACE(codec + " with staleness " + std::to_string(staleness));
      Fleet fleet({.workers = kWorkers});
      control::JobSpec job = MakeJob(staleness, kSteps + kQuiet);
      UseCodec("fp32", &job);
      job.set_pull_codec(codec);
      job.set_topk_fraction(0.2);
      job.mutable_optimizer()->set_name("sgd");
      job.mutable_schedule()->set_learning_rate(1);
      std::vector<std::vector<float>> weights(kWorkers);
      std::vector<std::vector<double>> pushed(kWorkers);
      std::vector<uint64_t> pulled(kWorkers);
      std::vector<Thread> threads;
      for (uint32_t worker = 0; worker < kWorkers; ++worker) {
        threads.emplace_back("worker", [&, worker] {
          auto client = Join(Options(fleet, job, static_cast<int32_t>(worker)));
          ASSERT_TRUE(client);
          pushed[worker].resize(kElements);
          Rng rng(worker);
          for (Clock clock = 0; clock < kSteps + kQuiet; ++clock) {
            for (size_t i = 0; i < kElements; ++i) {
              const float value = clock < kSteps ? static_cast<float>(rng.Uniform() - 0.5) : 0.0F;
              pushed[worker][i] += value;
              client->gradients()[i] = value;
              client->weights()[i] += 1;  // A training loop may: it is no copy of the reference.
            }
            ASSERT_TRUE(client->BeginStep(clock, {.weight = 1}).ok());
            for (const ChunkIndex k : client->chunk_order()) {
              ASSERT_TRUE(client->PushPull(k).ok());
            }
            const auto stats = client->FinishStep();
            ASSERT_TRUE(stats);
            pulled[worker] += stats->bytes_pulled;
          }
          ASSERT_TRUE(client->Barrier("end", 30 * kNsPerSecond).ok());
          ASSERT_TRUE(client->PullAll().ok());
          weights[worker].assign(client->weights().begin(), client->weights().end());
          EXPECT_TRUE(client->Leave(true, "").ok());
        });
      }
      threads.clear();
      EXPECT_EQ(fleet.Join(), 0);
      EXPECT_EQ(weights[0], weights[1]) << "readers differ";
      for (size_t i = 0; i < kElements; ++i) {
        const double expected = InitialWeight(i) - (pushed[0][i] + pushed[1][i]) / kWorkers;
        ASSERT_NEAR(weights[0][i], expected, 1e-3) << "element " << i;
      }
      if (staleness == 0) {
        EXPECT_LT(pulled[0], (kSteps + kQuiet) * kElements * sizeof(float) / 2);
      }
    }
  }
}

TEST(ClientTest, StepsAllocateNothingOnTheTrainingThread) {
  for (const std::string& codec :
       {std::string("fp32"), std::string("fp16"), std::string("int8"), std::string("topk")}) {
    Fleet fleet({.workers = 1});
    control::JobSpec job = MakeJob(0, 1000);
    UseCodec(codec, &job);
    job.set_pull_codec(codec);
    auto client = Join(Options(fleet, job));
    ASSERT_TRUE(client);
    Clock clock = 0;
    for (; clock < 20; ++clock) ASSERT_TRUE(Step(*client, clock, 1));
    const uint64_t before = ThreadAllocations().allocations;
    bool ok = true;
    for (; clock < 220; ++clock) ok = Step(*client, clock, 1).has_value() && ok;
    EXPECT_EQ(ThreadAllocations().allocations, before) << codec;
    EXPECT_TRUE(ok);
    EXPECT_EQ(Finish(&client, &fleet), 0);
  }
}

TEST(ClientTest, NoCoordinatorIsGivenUpWithOneClearLine) {
  ClientOptions options;
  options.coordinator = "127.0.0.1:1";  // Nobody listens there.
  options.connect_timeout_ns = kNsPerSecond / 4;
  options.job = MakeJob(0, 1);
  const auto client = Client::Connect(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.error().message(), HasSubstr("127.0.0.1:1"));
}

TEST(ClientTest, CancelWakesWhoeverWaits) {
  Fleet fleet({.workers = 2});
  const control::JobSpec job = MakeJob(0, 1);
  std::atomic<bool> pushed{false};
  std::atomic<bool> returned{false};  // Cancel() is over: the client may go.
  std::atomic<bool> cancelled{false};
  std::unique_ptr<Client> first;
  Thread other("other", [&] {
    auto client = Join(Options(fleet, job, 1));
    ASSERT_TRUE(client);
    pushed.wait(false);
    first->Cancel("the test says so");
    returned = true;
    returned.notify_all();
    cancelled.wait(false);
    ASSERT_TRUE(Step(*client, 0, 1)) << "the others go on without it";
    EXPECT_TRUE(client->Leave(true, "").ok());
  });
  first = Join(Options(fleet, job, 0));
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->BeginStep(0, {}).ok());
  for (const ChunkIndex chunk : first->chunk_order()) ASSERT_TRUE(first->PushPull(chunk).ok());
  pushed = true;
  pushed.notify_all();
  // The other pushes only after this has returned.
  const auto stats = first->FinishStep();
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code(), StatusCode::kAborted);
  EXPECT_THAT(stats.error().message(), HasSubstr("the test says so"));
  EXPECT_EQ(first->BeginStep(1, {}).code(), StatusCode::kAborted);
  EXPECT_EQ(first->Barrier("b", kNsPerSecond).code(), StatusCode::kAborted);
  EXPECT_TRUE(first->Leave(false, "cancelled").ok());
  returned.wait(false);
  first.reset();
  cancelled = true;
  cancelled.notify_all();
  other.Join();
  EXPECT_EQ(fleet.Join(), 0);
}

}  // namespace
}  // namespace slackline::worker
