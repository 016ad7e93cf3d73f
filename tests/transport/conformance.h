// The conformance suite of all transports: what transport.h promises, tested once and instantiated
// for each transport. A transport's test gives a TransportFixture and instantiates TransportTest:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportTest, testing::Values(TransportUnderTest{"tcp", Make}));
//
// Everything runs on one thread that pumps all endpoints, so that a case has no races of its own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace slackline::transport {

// What the suite needs to know of a transport.
class TransportFixture {
 public:
  virtual ~TransportFixture() = default;
  virtual std::unique_ptr<Endpoint> MakeEndpoint() = 0;
  // Where a test may listen: any free port.
  virtual std::string ListenAddress() = 0;
  // Well formed, but nobody listens there.
  virtual std::string NobodyAddress() = 0;
  // Not addresses of this transport.
  virtual std::vector<std::string> BadAddresses() = 0;
  // What a channel to `address` says of its other end.
  virtual std::string PeerName(const std::string& address) { return address; }
  // Payloads up to this size may be copied once, by their receiver.
  virtual size_t MaxCopiedPayloadBytes() { return 0; }
  // Polls the endpoints in turn until `done` or until the transport's patience ends (false).
  virtual bool PumpUntil(const std::vector<Endpoint*>& endpoints,
                         const std::function<bool()>& done) = 0;
};

struct TransportUnderTest {
  const char* name;
  std::unique_ptr<TransportFixture> (*make)();
};

inline void PrintTo(const TransportUnderTest& transport, std::ostream* out) {
  *out << transport.name;
}

// A handler that records every event and lets a case replace what is to happen at each.
class Recorder : public Handler {
 public:
  struct Reply {
    proto::WireHeader header;
    MutableBytes payload;
  };
  struct Request {
    proto::WireHeader header;
    MutableBytes payload;
    Channel* channel = nullptr;
  };

  void OnOpened(Channel& channel) override {
    opened.push_back(&channel);
    if (when_opened) when_opened(channel);
  }
  void OnClosed(Channel& channel, const Status& status) override {
    closed.emplace_back(&channel, status);
    if (when_closed) when_closed(channel, status);
  }
  void OnTaken(Channel& channel, uint64_t request_id) override {
    events.push_back("taken " + std::to_string(request_id));
    taken.push_back(request_id);
    if (when_taken) when_taken(channel, request_id);
  }
  void OnReply(Channel& channel, const proto::WireHeader& header, MutableBytes payload) override {
    events.push_back("reply " + std::to_string(header.request_id));
    replies.push_back({header, payload});
    if (when_reply) when_reply(channel, header, payload);
  }
  Landing OnRequestArriving(Channel& channel, const proto::WireHeader& header) override {
    ++asked;
    return when_arriving ? when_arriving(channel, header) : Landing::Drain();
  }
  void OnRequest(Channel& channel, const proto::WireHeader& header, MutableBytes payload) override {
    requests.push_back({header, payload, &channel});
    if (when_request) when_request(channel, header, payload);
  }
  void OnReplySent(Channel& channel, uint64_t request_id) override {
    replies_sent.push_back(request_id);
    if (when_reply_sent) when_reply_sent(channel, request_id);
  }

  std::vector<Channel*> opened;
  std::vector<std::pair<Channel*, Status>> closed;
  std::vector<uint64_t> taken;
  std::vector<Reply> replies;
  std::vector<Request> requests;
  std::vector<uint64_t> replies_sent;
  std::vector<std::string> events;  // OnTaken and OnReply in their order.
  size_t asked = 0;                 // Calls of OnRequestArriving.

  std::function<void(Channel&)> when_opened;
  std::function<void(Channel&, const Status&)> when_closed;
  std::function<void(Channel&, uint64_t)> when_taken;
  std::function<void(Channel&, const proto::WireHeader&, MutableBytes)> when_reply;
  std::function<Landing(Channel&, const proto::WireHeader&)> when_arriving;
  std::function<void(Channel&, const proto::WireHeader&, MutableBytes)> when_request;
  std::function<void(Channel&, uint64_t)> when_reply_sent;
};

// A request's header as the client would fill it.
proto::WireHeader RequestHeader(uint64_t request_id, size_t payload_bytes,
                                proto::MessageKind kind = proto::MessageKind::kPushPull);
// The reply to it.
proto::WireHeader ReplyHeader(const proto::WireHeader& request, size_t payload_bytes);
// Fills with bytes that depend on `seed` and the position.
void FillPattern(MutableBytes bytes, uint64_t seed);
bool HasPattern(ConstBytes bytes, uint64_t seed);

// A server endpoint that listens and a client endpoint, each with a Recorder.
class TransportTest : public testing::TestWithParam<TransportUnderTest> {
 protected:
  TransportTest();
  ~TransportTest() override;

  // Opens one more channel from the client; null (and a failure) if that does not happen. The
  // server's end is server_handler.opened.back().
  Channel* OpenChannel();
  bool PumpUntil(const std::function<bool()>& done);
  // Memory of the given endpoint, kept until the test ends.
  MutableBytes ClientMemory(size_t size_bytes);
  MutableBytes ServerMemory(size_t size_bytes);
  // The server takes every payload into memory of its own and answers at once with a payload of
  // the same size and the pattern `request_id + kReplySeed`. One request at a time: the memory is
  // used again for the next.
  void ServeEcho(size_t max_payload_bytes);
  // How many bytes of a payload of this size one end may copy.
  uint64_t Copied(size_t payload_bytes) {
    return payload_bytes <= fixture->MaxCopiedPayloadBytes() ? payload_bytes : 0;
  }
  // The server or the client vanishes with all its channels.
  void KillServer();
  void KillClient();

  static constexpr uint64_t kReplySeed = 1000;

  std::unique_ptr<TransportFixture> fixture;
  Recorder server_handler, client_handler;
  std::unique_ptr<Endpoint> server, client;
  std::string address;

 private:
  std::vector<std::unique_ptr<Region>> client_regions_, server_regions_;
  MutableBytes echo_landing_, echo_reply_;
};

}  // namespace slackline::transport
