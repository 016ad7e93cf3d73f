// A real shard on its own thread, and a map for a few of them: for tests of the client that bring
// no server process. Threading: the test's thread makes and stops it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/thread.h"
#include "common/time_source.h"
#include "proto/control.pb.h"
#include "server/shard.h"
#include "transport/factory.h"

namespace slackline::worker {

class TestShard {
 public:
  explicit TestShard(ShardIndex index) {
    auto endpoint = transport::CreateEndpoint("tcp");
    EXPECT_TRUE(endpoint);
    endpoint_ = std::move(*endpoint);
    shard_ =
        std::make_unique<server::Shard>(*endpoint_, time_, server::ShardOptions{.shard = index});
    endpoint_->set_handler(shard_.get());
    auto listening = endpoint_->Listen("tcp://127.0.0.1:0");
    EXPECT_TRUE(listening) << listening.error();
    if (listening) address_ = *listening;
  }
  ~TestShard() { Stop(); }
  void Start(const control::ShardMap& map, const control::View& view) {
    EXPECT_TRUE(shard_->InstallMap(map).ok());
    EXPECT_TRUE(shard_->InstallView(view).ok());
    thread_ = Thread("shard", [this] {
      while (!stop_) {
        endpoint_->Poll(
            std::clamp<TimeNs>(shard_->NextDeadline() - time_.NowNs(), 0, kNsPerSecond));
        shard_->OnTick(time_.NowNs());
      }
    });
  }
  void Stop() {
    stop_ = true;
    endpoint_->Wake();
    thread_.Join();
  }
  const std::string& address() const { return address_; }
  // After Stop.
  const transport::EndpointStats& stats() const { return endpoint_->stats(); }

 private:
  SteadyTimeSource time_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::unique_ptr<server::Shard> shard_;
  std::string address_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

// One tensor "w" in `chunks` chunks, dealt out to the shards in turn; SGD with learning rate 1.
inline control::ShardMap MakeTestMap(const std::vector<std::string>& addresses, uint32_t chunks,
                                     uint32_t chunk_elements) {
  control::ShardMap map;
  map.set_epoch(1);
  for (const std::string& address : addresses) map.add_shard_addresses(address);
  map.add_tensors()->set_name("w");
  map.mutable_tensors(0)->add_shape(int64_t{chunks} * chunk_elements);
  for (uint32_t k = 0; k < chunks; ++k) {
    control::Chunk& chunk = *map.add_chunks();
    chunk.set_index(k);
    chunk.set_flat_offset(uint64_t{k} * chunk_elements);
    chunk.set_count(chunk_elements);
    chunk.set_shard(k % static_cast<uint32_t>(addresses.size()));
    control::Segment& segment = *chunk.add_segments();
    segment.set_tensor_offset(chunk.flat_offset());
    segment.set_count(chunk_elements);
  }
  control::JobSpec& job = *map.mutable_job();
  job.set_model("test");
  job.set_steps(100000);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(1);
  job.set_push_codec("fp32");
  job.set_pull_codec("fp32");
  job.set_chunk_bytes(chunk_elements * uint32_t{sizeof(float)});
  return map;
}

}  // namespace slackline::worker
