// The two ends of slackline-bench transport: an echoing shard's end and a worker's end that keeps a
// number of requests in flight.
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
#include "transport/transport.h"

namespace slackline::bench {

// Largest payload and number of buffers on the answering end; requests beyond are drained.
inline constexpr size_t kPeerMaxBytes = 16u << 20;
inline constexpr size_t kPeerBufferBytes = 64u << 20;

// Answers every push-pull with a payload of the size that came, every push with none. Payloads land
// in, and replies leave from, buffers that take turns, as tensor memory would.
class AnsweringEnd final : public transport::Handler {
 public:
  static Result<std::unique_ptr<AnsweringEnd>> Create(const std::string& transport,
                                                      const std::string& listen_at);

  const std::string& address() const { return address_; }
  transport::Endpoint& endpoint() { return *endpoint_; }

  void OnOpened(transport::Channel&) override {}
  void OnClosed(transport::Channel&, const Status&) override { ++closed_; }
  transport::Landing OnRequestArriving(transport::Channel& channel,
                                       const proto::WireHeader& header) override;
  void OnRequest(transport::Channel& channel, const proto::WireHeader& header,
                 MutableBytes payload) override;
  // Channels that came and went.
  size_t closed() const { return closed_; }

 private:
  AnsweringEnd() = default;

  std::unique_ptr<transport::Endpoint> endpoint_;
  std::string address_;
  std::unique_ptr<transport::Region> in_, out_;
  size_t closed_ = 0;
};

// Sends requests of one size and times the replies.
class AskingEnd final : public transport::Handler {
 public:
  static Result<std::unique_ptr<AskingEnd>> Create(const std::string& transport,
                                                   const std::string& address);

  struct Load {
    size_t payload_bytes = 0;
    bool pull = true;  // The reply carries as many bytes as the request.
    size_t window = 1;
  };
  struct Sample {
    uint64_t requests = 0;
    double seconds = 0;
    std::vector<double> latencies_us;  // One a request.
  };
  // Keeps `window` requests in flight for about `duration_ns`. Errors: the channel's.
  Result<Sample> Run(const Load& load, TimeNs duration_ns);

  transport::Endpoint& endpoint() { return *endpoint_; }

  void OnOpened(transport::Channel&) override { open_ = true; }
  void OnClosed(transport::Channel&, const Status& status) override { failure_ = status; }
  void OnReply(transport::Channel& channel, const proto::WireHeader& header,
               MutableBytes payload) override;

 private:
  AskingEnd() = default;
  void Ask(uint64_t slot);

  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::Channel* channel_ = nullptr;
  std::unique_ptr<transport::Region> payloads_, landings_;
  bool open_ = false;
  Status failure_;

  SteadyTimeSource time_;
  Load load_;
  Sample* sample_ = nullptr;
  bool draining_ = false;  // No new requests: the run is over.
  size_t in_flight_ = 0;
  uint64_t asked_ = 0;
  std::vector<TimeNs> asked_ns_;  // By slot.
};

}  // namespace slackline::bench
