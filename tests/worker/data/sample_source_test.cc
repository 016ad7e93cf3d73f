#include "worker/data/sample_source.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/worker/data/data_test_util.h"
#include "worker/data/lease_source.h"
#include "worker/data/prefetcher.h"

namespace slackline::worker {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kSeed = 11;

std::vector<std::vector<SampleId>> AllOf(SampleSource& source) {
  std::vector<std::vector<SampleId>> list;
  MicroBatch batch;
  while (source.Next(batch).value()) list.push_back(batch.samples);
  return list;
}

TEST(BspSourceTest, EverySampleOnceAPass) {
  // 4 x 3 x 5 samples a clock, 7 clocks: 420, three passes of 140.
  std::map<uint64_t, std::multiset<uint64_t>> seen;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    BspSource source(SampleOrder(140, kSeed), {0, 7, rank, 4, 3, 5});
    for (const auto& batch : AllOf(source)) {
      for (const SampleId& sample : batch) seen[sample.pass].insert(sample.index);
    }
  }
  ASSERT_EQ(seen.size(), 3u);
  for (const auto& [pass, indices] : seen) {
    EXPECT_EQ(indices.size(), 140u) << pass;
    EXPECT_EQ(std::set<uint64_t>(indices.begin(), indices.end()).size(), 140u) << pass;
    EXPECT_LT(*indices.rbegin(), 140u);
  }
}

TEST(BspSourceTest, WorkersSeeWhatOneAccumulatingWorkerSees) {
  for (const uint32_t workers : {1u, 2u, 3u, 6u}) {
    const uint32_t accumulate = 6 / workers;
    BspSource one(SampleOrder(50, kSeed), {0, 9, 0, 1, 6, 4});
    const auto expected = AllOf(one);
    for (uint32_t rank = 0; rank < workers; ++rank) {
      BspSource source(SampleOrder(50, kSeed), {0, 9, rank, workers, accumulate, 4});
      const auto found = AllOf(source);
      ASSERT_EQ(found.size(), 9u * accumulate);
      for (size_t i = 0; i < found.size(); ++i) {
        const size_t clock = i / accumulate;
        EXPECT_EQ(found[i], expected[clock * 6 + rank * accumulate + i % accumulate]);
      }
    }
  }
}

TEST(BspSourceTest, AResumedWorkerGoesOnWhereTheClockIs) {
  BspSource whole(SampleOrder(50, kSeed), {0, 9, 1, 2, 2, 4});
  BspSource rest(SampleOrder(50, kSeed), {5, 9, 1, 2, 2, 4});
  const auto all = AllOf(whole);
  EXPECT_EQ(AllOf(rest), decltype(all)(all.begin() + 10, all.end()));
}

TEST(SampleOrderTest, PassesAndSeedsDiffer) {
  SampleOrder a(1000, 1), b(1000, 2);
  int same_pass = 0, same_seed = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t index = a.At(0, i).index;
    same_pass += a.At(1, i).index == index;
    same_seed += b.At(0, i).index == index;
  }
  EXPECT_LT(same_pass, 20);
  EXPECT_LT(same_seed, 20);
}

// Hands out ranges of `samples` positions one after the other.
class FakeBroker final : public LeaseBroker {
 public:
  FakeBroker(uint64_t samples, uint64_t range) : samples_(samples), range_(range) {}

  Result<control::DataLease> Lease(uint32_t count) override {
    MutexLock lock(mutex_);
    ++calls_;
    changed_.NotifyAll();
    if (!status_.ok()) return Err(status_);
    control::DataLease lease;
    for (uint32_t i = 0; i < count && !empty_; ++i) {
      auto* range = lease.add_ranges();
      range->set_lease_id(++last_id_);
      range->set_pass(next_ / samples_);
      range->set_begin(next_ % samples_);
      range->set_end(std::min(samples_, next_ % samples_ + range_));
      next_ += range->end() - range->begin();
    }
    return lease;
  }

  Status Finish(const std::vector<uint64_t>& ids) override {
    MutexLock lock(mutex_);
    finished_.insert(finished_.end(), ids.begin(), ids.end());
    changed_.NotifyAll();
    return OkStatus();
  }

  void SetEmpty(bool empty) {
    MutexLock lock(mutex_);
    empty_ = empty;
  }
  void Fail(Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  std::vector<uint64_t> WaitFinished(size_t count) {
    MutexLock lock(mutex_);
    while (finished_.size() < count) changed_.Wait(lock);
    return finished_;
  }
  void WaitCalls(int count) {
    MutexLock lock(mutex_);
    while (calls_ < count) changed_.Wait(lock);
  }

 private:
  const uint64_t samples_, range_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t next_ = 0, last_id_ = 0;
  int calls_ = 0;
  bool empty_ = false;
  Status status_;
  std::vector<uint64_t> finished_;
};

TEST(LeaseSourceTest, BatchesCrossLeasesAndNameThoseThatEnd) {
  FakeBroker broker(20, 5);
  LeaseSource source(SampleOrder(20, kSeed), 4, broker);
  SampleOrder order(20, kSeed);
  MicroBatch batch;
  std::vector<std::vector<uint64_t>> finished;
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(source.Next(batch).value());
    ASSERT_EQ(batch.samples.size(), 4u);
    for (uint64_t j = 0; j < 4; ++j) {
      const uint64_t position = 4 * i + j;
      EXPECT_EQ(batch.samples[j], order.At(position / 20, position % 20));
    }
    finished.push_back(batch.finished_leases);
    source.Finish(batch.finished_leases);
  }
  EXPECT_THAT(finished[0], ElementsAre());
  EXPECT_THAT(finished[1], ElementsAre(1));
  EXPECT_THAT(finished[4], ElementsAre(4));
  EXPECT_EQ(broker.WaitFinished(8), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(LeaseSourceTest, AsksAgainWhenThereWasNothing) {
  FakeBroker broker(20, 20);
  broker.SetEmpty(true);
  LeaseSource source(SampleOrder(20, kSeed), 4, broker);
  broker.WaitCalls(2);
  broker.SetEmpty(false);
  MicroBatch batch;
  EXPECT_TRUE(source.Next(batch).value());
}

TEST(LeaseSourceTest, ErrorsAndStopEndTheWait) {
  MicroBatch batch;
  FakeBroker broken(20, 5);
  broken.Fail(Unavailable("the coordinator is gone"));
  LeaseSource failing(SampleOrder(20, kSeed), 4, broken);
  EXPECT_EQ(failing.Next(batch).error(), Unavailable("the coordinator is gone"));

  FakeBroker nothing(20, 5);
  nothing.SetEmpty(true);
  LeaseSource stopped(SampleOrder(20, kSeed), 4, nothing);
  nothing.WaitCalls(1);
  stopped.Stop();
  EXPECT_EQ(stopped.Next(batch).error().code(), StatusCode::kAborted);

  FakeBroker large(40, 40);  // Of more samples than there are.
  LeaseSource refusing(SampleOrder(20, kSeed), 4, large);
  EXPECT_EQ(refusing.Next(batch).error().code(), StatusCode::kDataLoss);
}

TEST(PrefetcherTest, DeliversBatchesInOrderThenEnds) {
  TempDirectory directory;
  WriteTestText(directory.path(), {std::string(100, 'a')}, {"xyz"});
  const auto manifest = ReadManifest(directory.path());
  const auto data = Dataset::Open(directory.path(), *manifest, "train");
  const auto builder = BatchBuilder::Create(*data, 4, 1, true);
  BspSource source(SampleOrder(builder->samples(), kSeed), {0, 10, 0, 1, 1, 3});
  BspSource again(SampleOrder(builder->samples(), kSeed), {0, 10, 0, 1, 1, 3});
  Prefetcher prefetcher(source, *builder);
  MicroBatch expected_samples;
  for (int i = 0; i < 10; ++i) {
    auto batch = prefetcher.Next();
    ASSERT_TRUE(batch.has_value()) << batch.error();
    ASSERT_TRUE(again.Next(expected_samples).value());
    Batch expected;
    ASSERT_TRUE(builder->Fill(expected_samples.samples, expected).ok());
    EXPECT_EQ((*batch)->tokens, expected.tokens);
    prefetcher.Recycle(std::move(*batch));
  }
  EXPECT_EQ(prefetcher.Next().error().code(), StatusCode::kAborted);
}

TEST(PrefetcherTest, DestructionWhileTheQueueIsFull) {
  TempDirectory directory;
  WriteTestText(directory.path(), {std::string(100, 'a')}, {"xyz"});
  const auto manifest = ReadManifest(directory.path());
  const auto data = Dataset::Open(directory.path(), *manifest, "train");
  const auto builder = BatchBuilder::Create(*data, 4, 1, true);
  BspSource source(SampleOrder(builder->samples(), kSeed), {0, 1000000, 0, 1, 1, 3});
  Prefetcher prefetcher(source, *builder);
  EXPECT_TRUE(prefetcher.Next().has_value());
}

}  // namespace
}  // namespace slackline::worker
