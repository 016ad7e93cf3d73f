// An endpoint whose far side is the test: it records what is sent and says what comes back. For
// tests of the client's core that need every answer at an exact moment; the real transports have
// their own conformance suite. Threading: one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/time_source.h"
#include "transport/transport.h"

namespace slackline::worker {

class ManualTime final : public TimeSource {
 public:
  TimeNs NowNs() const override { return now_ns; }
  TimeNs now_ns = kNsPerSecond;
};

class FakeChannel final : public transport::Channel {
 public:
  struct Sent {
    proto::WireHeader header;
    std::vector<std::byte> payload;  // As it was when it was sent.
    MutableBytes landing;
  };

  explicit FakeChannel(std::string peer) : peer_(std::move(peer)) {}

  Status Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) override {
    if (closed) return Aborted("the channel is closed");
    if (!next_send.ok()) return std::exchange(next_send, OkStatus());
    sent.push_back({header, {payload.begin(), payload.end()}, landing});
    return OkStatus();
  }
  Status Reply(const proto::WireHeader&, ConstBytes) override { return Unimplemented("client"); }
  Status SendTaken(uint64_t) override { return Unimplemented("client"); }
  void ResumeReceiving() override {}
  void Close() override { closed = true; }
  std::string_view peer() const override { return peer_; }
  uint64_t bytes_moved() const override { return moved_bytes; }

  std::vector<Sent> sent;
  uint64_t moved_bytes = 0;
  bool closed = false;
  Status next_send;  // What the next Send returns, once.

 private:
  std::string peer_;
};

class FakeEndpoint final : public transport::Endpoint {
 public:
  void set_handler(transport::Handler* handler) override { handler_ = handler; }
  Result<std::string> Listen(std::string_view) override { return Err(Unimplemented("client")); }
  Result<transport::Channel*> Connect(std::string_view address, TimeNs) override {
    if (!next_connect.ok()) return Err(std::exchange(next_connect, OkStatus()));
    channels.push_back(std::make_unique<FakeChannel>(std::string(address)));
    return channels.back().get();
  }
  size_t Poll(TimeNs) override { return 0; }
  void Wake() override {}
  Result<std::unique_ptr<transport::Region>> Allocate(size_t) override {
    return Err(Unimplemented("tests bring their own memory"));
  }
  const transport::EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "fake"; }

  // ---- The far side ----
  FakeChannel& last() { return *channels.back(); }
  void Open(FakeChannel& channel) { handler_->OnOpened(channel); }
  void Cut(FakeChannel& channel) { handler_->OnClosed(channel, Unavailable("cut by the test")); }
  void Take(FakeChannel& channel, size_t request) {
    handler_->OnTaken(channel, channel.sent[request].header.request_id);
  }
  // Answers the channel's request number `request`; every byte of the payload is `fill`.
  void Answer(FakeChannel& channel, size_t request, proto::ReplyStatus status, Clock min_clock = 0,
              uint8_t fill = 0) {
    const FakeChannel::Sent& sent = channel.sent[request];
    const bool yes = status == proto::ReplyStatus::kOk || status == proto::ReplyStatus::kDuplicate;
    const MutableBytes payload = yes ? sent.landing : MutableBytes{};
    std::fill(payload.begin(), payload.end(), std::byte{fill});
    handler_->OnReply(channel, ReplyHeader(sent, status, min_clock, payload.size()), payload);
  }
  static proto::WireHeader ReplyHeader(const FakeChannel::Sent& sent, proto::ReplyStatus status,
                                       Clock min_clock, size_t payload_bytes) {
    return {.kind = proto::MessageKind::kReply,
            .status = status,
            .request_id = sent.header.request_id,
            .epoch = sent.header.epoch,
            .clock = sent.header.clock,
            .worker = sent.header.worker,
            .incarnation = sent.header.incarnation,
            .chunk = sent.header.chunk,
            .codec = payload_bytes > 0 ? sent.header.reply_codec : CodecId::kNone,
            .payload_bytes = static_cast<uint32_t>(payload_bytes),
            .version = 7,
            .min_clock = min_clock};
  }
  transport::Handler& handler() { return *handler_; }

  std::vector<std::unique_ptr<FakeChannel>> channels;  // Every one that was ever connected.
  Status next_connect;                                 // What the next Connect returns, once.

 private:
  transport::Handler* handler_ = nullptr;
  transport::EndpointStats stats_;
};

}  // namespace slackline::worker
