// A Shard behind a real TcpEndpoint and hand-written workers on theirs, all polled in turn by the
// test's thread: real sockets, no timing.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/shard.h"
#include "tests/server/shard_harness.h"
#include "transport/factory.h"

namespace slackline::server {

// One worker with an endpoint of its own. A reply's payload lands in `landing`.
struct RigWorker {
  WorkerId id = 0;
  std::unique_ptr<transport::Endpoint> endpoint;
  bool paused = false;  // Its endpoint is not polled: it neither reads nor writes.
  transport::Channel* channel = nullptr;  // Null once closed.
  bool open = false;
  std::vector<float> landing;
  std::vector<float> gradient;
  size_t replies = 0;
  size_t taken = 0;
  proto::WireHeader reply;
};

class TcpRig final : public transport::Handler {
 public:
  TcpRig(const control::ShardMap& map, uint32_t workers, ShardOptions options = {}) : map_(map) {
    server_ = *transport::CreateEndpoint("tcp");
    options.expected_workers = workers;
    shard_ = std::make_unique<Shard>(*server_, time_, options);
    server_->set_handler(shard_.get());
    address_ = *server_->Listen("tcp://127.0.0.1:0");
    EXPECT_TRUE(shard_->InstallMap(map).ok());
    EXPECT_TRUE(shard_->InstallView(TestView(1, TestMembers(workers))).ok());
    size_t max_count = 0;
    for (const control::Chunk& chunk : map.chunks()) {
      max_count = std::max<size_t>(max_count, chunk.count());
    }
    for (uint32_t id = 0; id < workers; ++id) {
      workers_.push_back(std::make_unique<RigWorker>());
      workers_.back()->id = id;
      workers_.back()->endpoint = *transport::CreateEndpoint("tcp");
      workers_.back()->endpoint->set_handler(this);
      workers_.back()->landing.resize(max_count);
      workers_.back()->gradient.resize(max_count);
      Connect(worker(id));
    }
  }
  ~TcpRig() override {
    shard_.reset();  // Its memory goes before the endpoint.
  }

  // Polls all ends until `done`, at most `rounds` times; false if it never was.
  template <typename Done>
  bool Pump(const Done& done, int rounds = 200'000) {
    for (int i = 0; i < rounds; ++i) {
      if (done()) return true;
      for (const auto& worker : workers_) {
        if (!worker->paused) worker->endpoint->Poll(0);
      }
      server_->Poll(0);
      shard_->OnTick(time_.NowNs());
    }
    return done();
  }

  void Connect(RigWorker& worker) {
    worker.channel = *worker.endpoint->Connect(address_, kNsPerSecond);
    worker.channel->set_context(&worker);
    ASSERT_TRUE(Pump([&] { return worker.open; }));
    proto::WireHeader hello = Header(proto::MessageKind::kHello, worker.id, 0, 0);
    ASSERT_EQ(Ask(worker, hello, {}).status, proto::ReplyStatus::kOk);
  }

  proto::WireHeader Header(proto::MessageKind kind, WorkerId worker, ChunkIndex chunk,
                           Clock clock) {
    proto::WireHeader header;
    header.kind = kind;
    header.request_id = ++last_id_;
    header.epoch = 1;
    header.worker = worker;
    header.incarnation = 1;
    header.chunk = chunk;
    header.clock = clock;
    header.weight = 1;
    header.reply_codec = FindCodec(map_.job().pull_codec())->id();
    return header;
  }
  proto::WireHeader PushPullHeader(const RigWorker& worker, ChunkIndex chunk, Clock clock) {
    proto::WireHeader header = Header(proto::MessageKind::kPushPull, worker.id, chunk, clock);
    header.codec = CodecId::kFp32;
    header.payload_bytes =
        static_cast<uint32_t>(map_.chunks(static_cast<int>(chunk)).count() * sizeof(float));
    return header;
  }
  void Send(RigWorker& worker, const proto::WireHeader& header, ConstBytes payload) {
    const Status status =
        worker.channel->Send(header, payload, std::as_writable_bytes(std::span(worker.landing)));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Sends and waits for the reply.
  proto::WireHeader Ask(RigWorker& worker, const proto::WireHeader& header, ConstBytes payload) {
    const size_t before = worker.replies;
    Send(worker, header, payload);
    EXPECT_TRUE(Pump([&] { return worker.replies > before; })) << proto::Describe(header);
    return worker.reply;
  }
  void PushPull(RigWorker& worker, ChunkIndex chunk, Clock clock) {
    const proto::WireHeader header = PushPullHeader(worker, chunk, clock);
    Send(worker, header, GradientBytes(worker, header.payload_bytes));
  }
  static ConstBytes GradientBytes(const RigWorker& worker, size_t bytes) {
    return std::as_bytes(std::span(worker.gradient)).first(bytes);
  }
  void InitAll(float value) {
    for (const control::Chunk& chunk : map_.chunks()) {
      const std::vector<float> weights(chunk.count(), value);
      proto::WireHeader header = Header(proto::MessageKind::kInit, 0, chunk.index(), 0);
      header.codec = CodecId::kFp32;
      header.payload_bytes = static_cast<uint32_t>(weights.size() * sizeof(float));
      ASSERT_EQ(Ask(worker(0), header, std::as_bytes(std::span(weights))).status,
                proto::ReplyStatus::kOk);
    }
  }

  RigWorker& worker(size_t i) { return *workers_[i]; }
  Shard& shard() { return *shard_; }
  transport::Endpoint& server() { return *server_; }
  const TimeSource& time() const { return time_; }

  // transport::Handler
  void OnOpened(transport::Channel& channel) override {
    static_cast<RigWorker*>(channel.context())->open = true;
  }
  void OnClosed(transport::Channel& channel, const Status&) override {
    auto* worker = static_cast<RigWorker*>(channel.context());
    worker->open = false;
    worker->channel = nullptr;
  }
  void OnTaken(transport::Channel& channel, uint64_t) override {
    ++static_cast<RigWorker*>(channel.context())->taken;
  }
  void OnReply(transport::Channel& channel, const proto::WireHeader& header,
               MutableBytes) override {
    auto* worker = static_cast<RigWorker*>(channel.context());
    ++worker->replies;
    worker->reply = header;
  }

 private:
  control::ShardMap map_;
  SteadyTimeSource time_;
  std::unique_ptr<transport::Endpoint> server_;
  std::unique_ptr<Shard> shard_;
  std::vector<std::unique_ptr<RigWorker>> workers_;
  std::string address_;
  uint64_t last_id_ = 0;
};

}  // namespace slackline::server
