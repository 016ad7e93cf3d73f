// After start-up a shard's push-pull path allocates nothing, whatever the mode and codec.
#include <gtest/gtest.h>

#include "common/counting_allocator.h"
#include "tests/server/shard_harness.h"

namespace slackline::server {
namespace {

struct Setting {
  int staleness;
  bool deterministic;
  const char* push_codec;
  const char* pull_codec;
  const char* optimizer;
};

class ShardAllocation : public testing::TestWithParam<Setting> {};

TEST_P(ShardAllocation, PushPullAllocatesNothing) {
  constexpr uint32_t kWorkers = 3;
  constexpr uint32_t kChunks = 4;
  constexpr size_t kCount = 1000;
  control::JobSpec job = TestJob(GetParam().staleness);
  job.set_deterministic(GetParam().deterministic);
  job.set_push_codec(GetParam().push_codec);
  job.set_pull_codec(GetParam().pull_codec);
  job.set_topk_fraction(0.1);
  job.mutable_optimizer()->set_name(GetParam().optimizer);
  job.mutable_optimizer()->set_weight_decay(0.01);
  ShardHarness t(TestMap(job, std::vector<size_t>(kChunks, kCount)), kWorkers);
  ASSERT_TRUE(t.install_status.ok()) << t.install_status;
  t.InitAll(1);
  const ChunkCodec& codec = t.shard->chunks()->at(0).push_codec;
  std::vector<std::byte> payload(codec.EncodedBytes());
  const std::vector<float> gradient(kCount, 0.125f);
  static_cast<void>(codec.Encode(gradient.data(), 8, {}, nullptr, payload.data()));

  auto step = [&](Clock clock) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      for (uint32_t worker = 0; worker < kWorkers; ++worker) {
        proto::WireHeader header = t.Header(proto::MessageKind::kPushPull, worker, chunk, clock);
        header.codec = codec.id();
        header.scale = 8;
        header.payload_bytes = static_cast<uint32_t>(payload.size());
        t.channel(worker).Arrive(header, payload);
      }
      t.SendAll();
    }
    t.shard->OnTick(t.time.now);
  };
  for (Clock clock = 0; clock < 5; ++clock) step(clock);
  const uint64_t before = ThreadAllocations().allocations;
  for (Clock clock = 5; clock < 50; ++clock) step(clock);
  EXPECT_EQ(ThreadAllocations().allocations, before);
  EXPECT_EQ(t.shard->Report().pushes(), 50u * kChunks * kWorkers);
  EXPECT_EQ(t.shard->Report().refused(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, ShardAllocation,
                         testing::Values(Setting{0, false, "fp16", "fp16", "adamw"},
                                         Setting{0, false, "fp32", "fp32", "sgd"},
                                         Setting{0, true, "fp32", "fp32", "momentum"},
                                         Setting{0, false, "int8", "int4", "adamw"},
                                         Setting{0, true, "onebit", "fp32", "momentum"},
                                         Setting{2, false, "topk", "topk", "momentum"},
                                         Setting{2, false, "fp16", "bf16", "adagrad"},
                                         Setting{-1, false, "bf16", "fp32", "nesterov"}));

}  // namespace
}  // namespace slackline::server
