// A client without a cluster: one server in the test's memory that steps by SGD on what it is
// pushed, with fp32 on the wire. It checks that the trainer keeps the client's contract, and keeps
// what was pushed.
// Threading: as Client.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "worker/client/client.h"

namespace slackline::worker {

struct FakeCluster {
  control::JobSpec job;
  WorkerId rank = 0;
  uint32_t workers = 1;
  Clock first_clock = 0;
  float learning_rate = 0.1f;
  bool lowest = true;
  // Called when a chunk is pushed and when a step is finished; an error ends the call.
  std::function<Status(ChunkIndex)> on_push;
  std::function<Status(Clock)> on_finish;
};

class FakeClient final : public Client {
 public:
  struct Step {
    Clock clock = 0;
    StepOptions options;
    std::vector<ChunkIndex> order;         // As pushed.
    std::vector<bool> empty;               // By chunk.
    std::vector<float> pushed;             // The flat gradient as pushed, empty chunks 0.
    std::vector<ChunkIndex> waited_first;  // Chunks waited for before FinishStep.
  };

  explicit FakeClient(FakeCluster cluster) : cluster_(std::move(cluster)) {}

  WorkerId rank() const override { return cluster_.rank; }
  Incarnation incarnation() const override { return 1; }
  uint32_t expected_workers() const override { return cluster_.workers; }
  const control::JobSpec& job() const override { return cluster_.job; }
  const std::string& run_id() const override { return run_id_; }

  Status Declare(std::vector<TensorSpec> tensors) override {
    const size_t chunk_count = cluster_.job.chunk_bytes() / sizeof(float);
    size_t total = 0;
    for (const auto& tensor : tensors) {
      size_t count = 1;
      for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
      tensor_chunks_.emplace_back();
      for (size_t c = total / chunk_count; c <= (total + count - 1) / chunk_count; ++c) {
        tensor_chunks_.back().push_back(static_cast<ChunkIndex>(c));
      }
      total += count;
    }
    weights_.resize(total);
    gradients_.resize(total);
    for (size_t offset = 0; offset < total; offset += chunk_count) {
      auto* chunk = map_.add_chunks();
      order_.push_back(static_cast<ChunkIndex>(order_.size()));
      chunk->set_index(order_.back());
      chunk->set_flat_offset(offset);
      chunk->set_count(std::min(chunk_count, total - offset));
    }
    return OkStatus();
  }
  const control::ShardMap& shard_map() const override { return map_; }
  Clock first_clock() const override { return cluster_.first_clock; }
  std::span<float> weights() override { return weights_; }
  std::span<float> gradients() override { return gradients_; }
  std::span<float> tensor_weights(size_t) override { return {}; }
  std::span<float> tensor_gradients(size_t) override { return {}; }
  std::span<const ChunkIndex> tensor_chunks(size_t tensor) const override {
    return tensor_chunks_[tensor];
  }
  std::span<const ChunkIndex> chunk_order() const override { return order_; }
  Status Initialize() override {
    master_ = weights_;
    return OkStatus();
  }

  Status BeginStep(Clock clock, const StepOptions& options) override {
    EXPECT_FALSE(open_) << "the step before was not finished";
    open_ = true;
    Step step;
    step.clock = clock;
    step.options = options;
    step.empty.resize(order_.size());
    step.pushed.resize(weights_.size());
    steps_.push_back(std::move(step));
    return OkStatus();
  }

  Status PushPull(ChunkIndex index, bool empty) override {
    EXPECT_TRUE(open_);
    Step& step = steps_.back();
    EXPECT_EQ(std::count(step.order.begin(), step.order.end(), index), 0) << "pushed twice";
    step.order.push_back(index);
    step.empty[index] = empty || step.options.empty;
    const auto [begin, end] = Range(index);
    for (size_t i = begin; i < end; ++i) {
      if (!step.empty[index]) {
        step.pushed[i] = gradients_[i];
        const double gradient = double{gradients_[i]} / step.options.scale / step.options.weight;
        master_[i] -= cluster_.learning_rate * static_cast<float>(gradient);
      }
      // Between PushPull and WaitChunk nobody may read the chunk's weights.
      weights_[i] = std::numeric_limits<float>::quiet_NaN();
    }
    return cluster_.on_push ? cluster_.on_push(index) : OkStatus();
  }

  Status WaitChunk(ChunkIndex index) override {
    EXPECT_TRUE(open_);
    if (open_) steps_.back().waited_first.push_back(index);
    return Collect(index);
  }

  Result<StepStats> FinishStep() override {
    EXPECT_TRUE(open_);
    EXPECT_EQ(steps_.back().order.size(), order_.size()) << "a chunk was not pushed";
    for (const ChunkIndex index : order_) (void)Collect(index);
    open_ = false;
    if (cluster_.on_finish) {
      SLACKLINE_RETURN_ERR_IF_ERROR(cluster_.on_finish(steps_.back().clock));
    }
    StepStats stats;
    stats.bytes_pushed = weights_.size() * sizeof(float);
    stats.staleness.Add(0, order_.size());
    return stats;
  }

  Status PullAll() override {
    EXPECT_FALSE(open_);
    weights_ = master_;
    return OkStatus();
  }
  Status Barrier(const std::string& name, TimeNs) override {
    calls_.push_back("barrier " + name);
    return OkStatus();
  }
  bool lowest_live_rank() const override { return cluster_.lowest; }

  Result<control::DataLease> LeaseData(uint32_t count) override {
    MutexLock lock(mutex_);
    control::DataLease lease;
    const uint64_t samples = cluster_.job.train_samples();
    for (uint32_t i = 0; i < count; ++i) {
      auto* range = lease.add_ranges();
      range->set_lease_id(++last_lease_);
      range->set_pass(next_sample_ / samples);
      range->set_begin(next_sample_ % samples);
      range->set_end(std::min<uint64_t>(samples, range->begin() + cluster_.job.lease_samples()));
      next_sample_ += range->end() - range->begin();
    }
    return lease;
  }
  Status FinishData(const std::vector<uint64_t>& ids) override {
    MutexLock lock(mutex_);
    finished_leases_.insert(finished_leases_.end(), ids.begin(), ids.end());
    return OkStatus();
  }
  std::vector<uint64_t> finished_leases() {
    MutexLock lock(mutex_);
    return finished_leases_;
  }

  void Report(const control::StepReport& report) override { reports_.push_back(report); }
  Status ReportFinal(const control::FinalReport& report) override {
    final_ = report;
    calls_.push_back("final");
    return OkStatus();
  }
  Status Leave(bool done, const std::string& reason) override {
    calls_.push_back((done ? "leave done: " : "leave early: ") + reason);
    return OkStatus();
  }
  void Cancel(const std::string&) override { cancelled_ = true; }

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<control::StepReport>& reports() const { return reports_; }
  const control::FinalReport& final_report() const { return final_; }
  const std::vector<std::string>& calls() const { return calls_; }
  bool cancelled() const { return cancelled_; }
  const std::vector<float>& master() const { return master_; }

 private:
  std::pair<size_t, size_t> Range(ChunkIndex index) const {
    const auto& chunk = map_.chunks(static_cast<int>(index));
    return {chunk.flat_offset(), chunk.flat_offset() + chunk.count()};
  }
  Status Collect(ChunkIndex index) {
    const auto [begin, end] = Range(index);
    std::copy(master_.begin() + static_cast<ptrdiff_t>(begin),
              master_.begin() + static_cast<ptrdiff_t>(end),
              weights_.begin() + static_cast<ptrdiff_t>(begin));
    return OkStatus();
  }

  FakeCluster cluster_;
  std::string run_id_ = "test";
  control::ShardMap map_;
  std::vector<std::vector<ChunkIndex>> tensor_chunks_;
  std::vector<ChunkIndex> order_;
  std::vector<float> weights_, gradients_, master_;
  bool open_ = false;
  bool cancelled_ = false;
  std::vector<Step> steps_;
  std::vector<control::StepReport> reports_;
  control::FinalReport final_;
  std::vector<std::string> calls_;

  Mutex mutex_;
  uint64_t last_lease_ = 0, next_sample_ = 0;
  std::vector<uint64_t> finished_leases_;
};

}  // namespace slackline::worker
