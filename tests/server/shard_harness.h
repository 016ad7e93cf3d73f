// Drives a Shard by hand: an endpoint and channels without a network, whose every step the test
// decides: when a payload arrives, when a reply has left, when a channel breaks.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/time_source.h"
#include "proto/control.pb.h"
#include "proto/wire_header.h"
#include "server/shard.h"
#include "transport/transport.h"

namespace slackline::server {

class ManualTime final : public TimeSource {
 public:
  TimeNs NowNs() const override { return now; }
  TimeNs now = kNsPerSecond;
};

class FakeChannel;

class FakeRegion final : public transport::Region {
 public:
  explicit FakeRegion(size_t bytes)
      : Region({}),
        memory_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {
    bytes_ = {memory_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

class FakeEndpoint final : public transport::Endpoint {
 public:
  void set_handler(transport::Handler* handler) override { handler_ = handler; }
  Result<std::string> Listen(std::string_view) override { return Err(Unimplemented("fake")); }
  Result<transport::Channel*> Connect(std::string_view, TimeNs) override {
    return Err(Unimplemented("fake"));
  }
  size_t Poll(TimeNs) override { return 0; }
  void Wake() override {}
  Result<std::unique_ptr<transport::Region>> Allocate(size_t size_bytes) override {
    return std::unique_ptr<transport::Region>(std::make_unique<FakeRegion>(size_bytes));
  }
  const transport::EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "fake"; }
  transport::Handler* handler() { return handler_; }

 private:
  transport::Handler* handler_ = nullptr;
  transport::EndpointStats stats_;
};

// One reply as it was handed over. `payload` points into the shard's memory until it is read.
struct FakeReply {
  proto::WireHeader header;
  ConstBytes payload;
  std::vector<float> Floats() const {
    std::vector<float> out(payload.size() / sizeof(float));
    std::memcpy(out.data(), payload.data(), out.size() * sizeof(float));
    return out;
  }
};

class FakeChannel final : public transport::Channel {
 public:
  explicit FakeChannel(transport::Handler& handler) : handler_(handler) {
    replies.reserve(4096);  // So that recording does not allocate in tests that count.
    taken.reserve(4096);
  }

  // ---- What the network does.
  // A request arrives whole, or stops at the shard's wish until it resumes.
  void Arrive(const proto::WireHeader& header, ConstBytes payload = {}) {
    if (header.payload_bytes == 0) {
      handler_.OnRequest(*this, header, {});
      return;
    }
    const transport::Landing landing = handler_.OnRequestArriving(*this, header);
    if (landing.verdict == transport::Landing::Verdict::kLater) {
      stopped_ = Stopped{header, payload};
      return;
    }
    MutableBytes memory = landing.memory;
    if (!memory.empty()) std::memcpy(memory.data(), payload.data(), payload.size());
    handler_.OnRequest(*this, header, memory);
  }
  // The replies' payloads have left.
  void SendAll() {
    for (; sent_ < replies.size(); ++sent_) {
      handler_.OnReplySent(*this, replies[sent_].header.request_id);
    }
  }
  void Break() {
    closed = true;
    handler_.OnClosed(*this, Unavailable("broken by the test"));
  }
  bool stopped() const { return stopped_.has_value(); }

  // ---- transport::Channel
  Status Send(const proto::WireHeader&, ConstBytes, MutableBytes) override {
    return Unimplemented("fake");
  }
  Status Reply(const proto::WireHeader& header, ConstBytes payload) override {
    if (breaks_at_reply && !closed) Break();
    if (closed) return Unavailable("closed");
    replies.push_back({header, payload});
    return OkStatus();
  }
  Status SendTaken(uint64_t request_id) override {
    taken.push_back(request_id);
    return OkStatus();
  }
  void ResumeReceiving() override {
    if (!stopped_) return;
    const Stopped stopped = *stopped_;
    stopped_.reset();
    Arrive(stopped.header, stopped.payload);
  }
  void Close() override { closed = true; }
  std::string_view peer() const override { return "fake://peer"; }

  std::vector<FakeReply> replies;
  std::vector<uint64_t> taken;
  bool closed = false;
  bool breaks_at_reply = false;  // The shard's next reply finds the channel broken.

 private:
  struct Stopped {
    proto::WireHeader header;
    ConstBytes payload;
  };
  transport::Handler& handler_;
  std::optional<Stopped> stopped_;
  size_t sent_ = 0;
};

// Defaults: SGD with learning rate 1, fp32 both ways, BSP.
inline control::JobSpec TestJob(int staleness = 0) {
  control::JobSpec job;
  job.set_model("test");
  job.set_steps(1'000'000);
  job.set_staleness(staleness);
  job.set_push_codec("fp32");
  job.set_pull_codec("fp32");
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.999);
  job.mutable_optimizer()->set_epsilon(1e-8);
  job.mutable_schedule()->set_name("constant");
  job.mutable_schedule()->set_learning_rate(1);
  return job;
}

// Chunks of these counts, chunk k a tensor "t<k>" of its own, all on shard 0; odd ones decay.
inline control::ShardMap TestMap(const control::JobSpec& job, const std::vector<size_t>& counts) {
  control::ShardMap map;
  map.set_epoch(1);
  *map.mutable_job() = job;
  uint64_t offset = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    control::TensorSpec* tensor = map.add_tensors();
    tensor->set_name("t" + std::to_string(k));
    tensor->add_shape(static_cast<int64_t>(counts[k]));
    tensor->set_decay(k % 2 == 1);
    control::Chunk* chunk = map.add_chunks();
    chunk->set_index(static_cast<uint32_t>(k));
    chunk->set_flat_offset(offset);
    chunk->set_count(counts[k]);
    control::Segment* segment = chunk->add_segments();
    segment->set_tensor(static_cast<uint32_t>(k));
    segment->set_count(counts[k]);
    offset += counts[k];
  }
  return map;
}

inline control::View TestView(uint64_t version, const std::vector<Member>& members) {
  control::View view;
  view.set_version(version);
  for (const Member& member : members) {
    control::Member* out = view.add_members();
    out->set_worker(member.worker);
    out->set_incarnation(member.incarnation);
    out->set_first_clock(member.first_clock);
  }
  return view;
}

inline std::vector<Member> TestMembers(uint32_t workers, Clock first_clock = 0) {
  std::vector<Member> members;
  for (uint32_t w = 0; w < workers; ++w) members.push_back({w, 1, first_clock});
  return members;
}

// A shard with workers 0..W-1 that have said hello, one channel each.
class ShardHarness {
 public:
  ShardHarness(const control::ShardMap& map, uint32_t workers, ShardOptions options = {},
               Clock first_clock = 0)
      : map_(map) {
    options.expected_workers = workers;
    shard = std::make_unique<Shard>(endpoint, time, options);
    endpoint.set_handler(shard.get());
    install_status = shard->InstallMap(map);
    if (install_status.ok())
      install_status = shard->InstallView(TestView(1, TestMembers(workers, first_clock)));
    if (!install_status.ok()) return;
    for (uint32_t w = 0; w < workers; ++w) Hello(Open(), w);
  }

  FakeChannel& Open() {
    channels.push_back(std::make_unique<FakeChannel>(*shard));
    shard->OnOpened(*channels.back());
    return *channels.back();
  }
  // The worker reconnects: channel(worker) is a new one; the shard still has the old one.
  void Reconnect(WorkerId worker) {
    Open();
    std::swap(channels[worker], channels.back());
    Hello(channel(worker), worker);
  }
  // Every reply so far has left.
  void SendAll() {
    for (const std::unique_ptr<FakeChannel>& channel : channels) {
      if (!channel->closed) channel->SendAll();
    }
  }
  proto::ReplyStatus Hello(FakeChannel& channel, WorkerId worker, Incarnation incarnation = 1) {
    proto::WireHeader header = Header(proto::MessageKind::kHello, worker, 0, 0);
    header.incarnation = incarnation;
    header.reply_codec = CodecId::kNone;
    channel.Arrive(header);
    const proto::ReplyStatus status = channel.replies.back().header.status;
    channel.SendAll();
    return status;
  }
  // A request's header with everything right; tests then spoil it.
  proto::WireHeader Header(proto::MessageKind kind, WorkerId worker, ChunkIndex chunk,
                           Clock clock) {
    proto::WireHeader header;
    header.kind = kind;
    header.request_id = ++last_id;
    header.epoch = map_.epoch();
    header.worker = worker;
    header.incarnation = 1;
    header.chunk = chunk;
    header.clock = clock;
    header.weight = 1;
    header.scale = 1;
    header.reply_codec =
        shard->chunks()->size() > 0 ? shard->chunks()->at(0).pull_codec.id() : CodecId::kNone;
    return header;
  }
  static ConstBytes BytesOf(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  }
  void Init(ChunkIndex chunk, const std::vector<float>& weights) {
    proto::WireHeader header = Header(proto::MessageKind::kInit, 0, chunk, 0);
    header.codec = CodecId::kFp32;
    header.payload_bytes = static_cast<uint32_t>(weights.size() * sizeof(float));
    channel(0).Arrive(header, BytesOf(weights));
    channel(0).SendAll();
  }
  void InitAll(float value) {
    for (const control::Chunk& chunk : map_.chunks()) {
      Init(chunk.index(), std::vector<float>(chunk.count(), value));
    }
  }
  // A push-pull of FP32 values; returns its request id.
  uint64_t PushPull(WorkerId worker, ChunkIndex chunk, Clock clock,
                    const std::vector<float>& gradient, double weight = 1) {
    proto::WireHeader header = Header(proto::MessageKind::kPushPull, worker, chunk, clock);
    header.codec = CodecId::kFp32;
    header.weight = weight;
    header.payload_bytes = static_cast<uint32_t>(gradient.size() * sizeof(float));
    channel(worker).Arrive(header, BytesOf(gradient));
    return header.request_id;
  }
  uint64_t EmptyPushPull(WorkerId worker, ChunkIndex chunk, Clock clock) {
    proto::WireHeader header = Header(proto::MessageKind::kPushPull, worker, chunk, clock);
    header.flags = proto::kFlagEmptyPush;
    header.weight = 0;
    channel(worker).Arrive(header);
    return header.request_id;
  }
  uint64_t Pull(WorkerId worker, ChunkIndex chunk, Clock clock) {
    proto::WireHeader header = Header(proto::MessageKind::kPull, worker, chunk, clock);
    channel(worker).Arrive(header);
    return header.request_id;
  }

  FakeChannel& channel(WorkerId worker) { return *channels[worker]; }
  // The worker's last reply; null if it has none to this request.
  const FakeReply* ReplyTo(WorkerId worker, uint64_t request_id) {
    for (const FakeReply& reply : channel(worker).replies) {
      if (reply.header.request_id == request_id) return &reply;
    }
    return nullptr;
  }
  bool Taken(WorkerId worker, uint64_t request_id) {
    const std::vector<uint64_t>& taken = channel(worker).taken;
    return std::find(taken.begin(), taken.end(), request_id) != taken.end();
  }
  std::vector<float> Weights(ChunkIndex chunk) const {
    const Chunk& at = shard->chunks()->at(*shard->chunks()->FindLocal(chunk));
    return {at.master, at.master + at.count};
  }

  ManualTime time;
  FakeEndpoint endpoint;
  std::unique_ptr<Shard> shard;
  std::vector<std::unique_ptr<FakeChannel>> channels;  // Those of the workers first, by rank.
  Status install_status;
  uint64_t last_id = 0;

 private:
  control::ShardMap map_;
};

}  // namespace slackline::server
