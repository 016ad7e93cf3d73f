// The transport interface: requests and replies, each a header and at most one payload, between a
// worker's channels and a shard's endpoint. tcp, shm, auto (which picks one for each peer) and sim
// implement it; one conformance suite tests them all.
//
// Zero copy: the caller of a request names the memory where the reply's payload must land, and the
// receiver of a request is asked where its payload shall land, after the header and before the
// payload. Memory that is used for I/O comes from Endpoint::Allocate, so that a transport can
// register or share it; a transport may refuse to send from other memory (InvalidArgument). Between
// tensor memory and the wire no payload is copied in user space: over shared memory the one copy
// from tensor memory to landing is the transfer itself.
//
// Threading: an Endpoint, its Channels and its handler belong to one thread, the one that calls
// Poll(); every callback runs inside Poll() on that thread. Only Wake() may be called from others.
// Allocation: after start-up (channels open, queues at their bounds) nothing allocates.
// Errors: a failed channel never takes the endpoint with it. It stops touching caller memory, drops
// what was queued, reports OnClosed once, and is gone. Transports do not retry and do not
// reconnect: the worker's client does, since only it knows what was acknowledged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/wire_header.h"

namespace slackline::transport {

// Memory for I/O, page-aligned, freed with its Region. Must not outlive its Endpoint.
class Region {
 public:
  virtual ~Region() = default;
  MutableBytes bytes() const { return bytes_; }

 protected:
  explicit Region(MutableBytes bytes) : bytes_(bytes) {}
  MutableBytes bytes_;
};

// One connection. Owned by its Endpoint; valid from OnOpened until OnClosed returns, or until
// Close() returns.
class Channel {
 public:
  virtual ~Channel() = default;

  // ---- The worker's side ----
  // Sends a request. `payload` (header.payload_bytes long, may be empty) must stay valid and
  // unchanged until the reply, or until the channel is closed. The reply's payload lands in
  // `landing`; a reply whose payload does not fit closes the channel with DataLoss.
  // `header.request_id` must be unused among this channel's open requests.
  // ResourceExhausted: kMaxOpenRequests are open, nothing was sent; try again after a reply.
  // FailedPrecondition: this is the accepting end; requests go from the end that connected.
  // Aborted: the channel is closed. The payload's hash in the header is the caller's to make and
  // to check.
  virtual Status Send(const proto::WireHeader& header, ConstBytes payload,
                      MutableBytes landing) = 0;

  // ---- The shard's side ----
  // Answers a request; header.request_id names it. `payload` must stay valid and unchanged until
  // OnReplySent for this id, or until the channel is closed. FailedPrecondition: no such request is
  // open.
  virtual Status Reply(const proto::WireHeader& header, ConstBytes payload) = 0;
  // Sends kTaken, once, for a request whose reply is still to come.
  virtual Status SendTaken(uint64_t request_id) = 0;
  // Goes on after the handler answered Landing::Later().
  virtual void ResumeReceiving() = 0;

  // ---- Both ----
  // Closes now. When it returns, no memory that was handed to this channel is touched any more, and
  // OnClosed is not called for it: this is the fence before memory is reused. May be called inside
  // a callback; the Channel is destroyed before the next Poll() returns.
  virtual void Close() = 0;
  // For messages: "tcp://10.0.0.2:4711" of the other end.
  virtual std::string_view peer() const = 0;
  // Bytes that this channel has moved, either way, parts of messages included: as long as it grows,
  // the peer is alive. 0 where messages move whole.
  virtual uint64_t bytes_moved() const { return 0; }
  // A free pointer for the handler; null at first.
  void set_context(void* context) { context_ = context; }
  void* context() const { return context_; }

 private:
  void* context_ = nullptr;
};

// Bound on requests that are open (not answered) on one channel, on either side.
inline constexpr size_t kMaxOpenRequests = 1024;

// Where an arriving request's payload goes.
struct Landing {
  enum class Verdict : uint8_t {
    kInto,   // Into `memory`, which is exactly header.payload_bytes long.
    kDrain,  // Read and thrown away: a duplicate, or a request that will be refused.
    kLater,  // Not yet: stop reading this channel until ResumeReceiving(); then ask again.
  };
  Verdict verdict = Verdict::kDrain;
  MutableBytes memory;

  static Landing Into(MutableBytes memory) { return {Verdict::kInto, memory}; }
  static Landing Drain() { return {Verdict::kDrain, {}}; }
  static Landing Later() { return {Verdict::kLater, {}}; }
};

// What an endpoint tells its owner. A worker's handler overrides the upper half, a shard's the
// lower.
class Handler {
 public:
  virtual ~Handler() = default;

  // A connection was made (Connect) or accepted (Listen).
  virtual void OnOpened(Channel& channel) = 0;
  // It failed: a connect that found nobody, a peer that left, bytes that are not our protocol.
  // Memory handed to it is free. The channel is destroyed after the call.
  virtual void OnClosed(Channel& channel, const Status& status) = 0;

  // The worker's side. `payload` is the part of the request's landing memory that was filled.
  virtual void OnTaken(Channel&, uint64_t /*request_id*/) {}
  virtual void OnReply(Channel&, const proto::WireHeader&, MutableBytes /*payload*/) {}

  // The shard's side. Asked once a request's header is here (again after Later); requests without
  // payload are not asked about. Nothing may be concluded from it yet: the bytes are still to come.
  virtual Landing OnRequestArriving(Channel&, const proto::WireHeader&) { return Landing::Drain(); }
  // The request is here; `payload` is the landing memory, or empty if there was none or it drained.
  virtual void OnRequest(Channel&, const proto::WireHeader&, MutableBytes /*payload*/) {}
  // The reply's payload memory is free again. Comes in the order of the channel's replies, and
  // before anything of a later request that uses the same id.
  virtual void OnReplySent(Channel&, uint64_t /*request_id*/) {}
};

// Counts for tests and status pages. Bytes are payload bytes.
struct EndpointStats {
  uint64_t requests_sent = 0, replies_received = 0;
  uint64_t requests_received = 0, replies_sent = 0;
  uint64_t payload_bytes_sent = 0, payload_bytes_received = 0;
  uint64_t payload_bytes_copied = 0;  // In user space, between caller memory and the wire.
  uint64_t payload_bytes_drained = 0;
  uint64_t protocol_errors = 0;  // Channels closed because of the peer's bytes.
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // The handler must be set before Listen, Connect or Poll, and outlive the endpoint's last Poll.
  virtual void set_handler(Handler* handler) = 0;

  // Accepts connections at `address` ("tcp://0.0.0.0:0" takes a free port). Returns the address
  // with the port that was taken; where there are several ways in, all of them with commas between.
  // AlreadyExists: port in use; InvalidArgument: not an address.
  virtual Result<std::string> Listen(std::string_view address) = 0;

  // Starts a connection; OnOpened or OnClosed follows. The channel may not be used before OnOpened.
  // `address` is what a Listen returned: of several ways the endpoint takes one that it has.
  // Gives up after `timeout_ns`. InvalidArgument: not an address.
  virtual Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) = 0;

  // Runs what is ready; waits at most `max_wait_ns` if nothing is (0: not at all). Returns the
  // number of events handled. Not re-entrant.
  virtual size_t Poll(TimeNs max_wait_ns) = 0;
  // Thread-safe: makes a waiting Poll return.
  virtual void Wake() = 0;

  // Zero-filled, and resident where the system allows it: the data path does not meet page faults.
  // ResourceExhausted names the bytes, the limit and the cure.
  virtual Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) = 0;

  virtual const EndpointStats& stats() const = 0;
  virtual std::string_view name() const = 0;  // "tcp", "sim", ...
};

}  // namespace slackline::transport
