// The two ends of slackline-bench transport: a shard's end that takes and gives bytes, and a
// worker's end that keeps a number of requests in flight on each of its channels.
//
// Threading: each end belongs to the thread that polls it, its endpoint with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "transport/factory.h"
#include "transport/transport.h"

namespace slackline::bench {

// Largest payload, and the memory that payloads take turns in, as they do in tensor memory.
inline constexpr size_t kPeerMaxBytes = 64u << 20;
inline constexpr size_t kPeerBufferBytes = 128u << 20;
// Small payloads stay in so much of it: a message's fixed cost is to be seen, not a TLB's misses.
inline constexpr size_t kPeerSmallBytes = 64u << 10;
inline constexpr size_t kPeerSmallBufferBytes = 1u << 20;

// The part of `buffer` that payload number `turn` of this size uses; parts take turns.
MutableBytes PartOf(MutableBytes buffer, uint64_t turn, size_t size_bytes);

// Answers a push with no payload, a push-pull with one of its own size, a pull with one of the size
// that its `version` names. Payloads land in, and replies leave from, parts that take turns.
class AnsweringEnd final : public transport::Handler {
 public:
  static Result<std::unique_ptr<AnsweringEnd>> Create(const std::string& transport,
                                                      const transport::EndpointOptions& options,
                                                      const std::string& listen_at);

  const std::string& address() const { return address_; }
  transport::Endpoint& endpoint() { return *endpoint_; }

  void OnOpened(transport::Channel&) override {}
  void OnClosed(transport::Channel&, const Status&) override {}
  transport::Landing OnRequestArriving(transport::Channel& channel,
                                       const proto::WireHeader& header) override;
  void OnRequest(transport::Channel& channel, const proto::WireHeader& header,
                 MutableBytes payload) override;

 private:
  AnsweringEnd() = default;

  std::unique_ptr<transport::Endpoint> endpoint_;
  std::string address_;
  std::unique_ptr<transport::Region> in_, out_;
};

// Sends requests of one size and times the replies.
class AskingEnd final : public transport::Handler {
 public:
  static Result<std::unique_ptr<AskingEnd>> Create(const std::string& transport,
                                                   const transport::EndpointOptions& options,
                                                   const std::string& address, size_t channels);

  enum class Op : uint8_t {
    kPush,      // Bytes to the answering end.
    kPull,      // Bytes from it.
    kPushPull,  // Both in one request.
    kBoth,      // Pushes on the even channels, pulls on the odd ones.
  };
  struct Load {
    Op op = Op::kPushPull;
    size_t payload_bytes = 0;
    size_t channels = 1;
    size_t window = 1;  // Requests in flight on each.
  };
  struct Sample {
    uint64_t requests = 0;
    double seconds = 0;
    std::vector<double> latencies_us;  // One a request, up to a bound.
  };
  // Keeps the load up for about `duration_ns`. Errors: a channel's.
  Result<Sample> Run(const Load& load, TimeNs duration_ns);

  transport::Endpoint& endpoint() { return *endpoint_; }
  // How the channels go: "shm://...", also where the endpoint picked.
  std::string peer() const { return std::string(channels_.front()->peer()); }

  void OnOpened(transport::Channel&) override { ++open_; }
  void OnClosed(transport::Channel&, const Status& status) override { failure_ = status; }
  void OnReply(transport::Channel& channel, const proto::WireHeader& header,
               MutableBytes payload) override;

 private:
  AskingEnd() = default;
  void Ask(size_t channel, uint64_t slot);

  std::unique_ptr<transport::Endpoint> endpoint_;
  std::vector<transport::Channel*> channels_;
  std::unique_ptr<transport::Region> payloads_, landings_;
  size_t open_ = 0;
  Status failure_;

  SteadyTimeSource time_;
  Load load_;
  Sample sample_;
  bool draining_ = false;  // No new requests: the run is over.
  size_t in_flight_ = 0;
  uint64_t asked_ = 0;
  std::vector<TimeNs> asked_ns_;  // By channel and slot.
};

}  // namespace slackline::bench
