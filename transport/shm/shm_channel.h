// One shared-memory channel: rings of headers in a shared segment, payloads copied once, by their
// receiver, from the sender's memory to where they belong.
//
// That the receiver copies makes Close() a fence without waiting for anyone: nobody but this end
// ever writes its memory. The other direction, memory that is used again while a peer still reads
// it, is caught by the closed flag: it is raised before Close() returns, and a receiver looks at it
// after its copy and before it tells anyone of the message.
//
// A reply's payload is free when the connector has moved its reading position past it, which it
// does before it calls OnReply; the acceptor takes note of that before it takes new requests.
//
// Files: shm_channel.cc (life, requests, replies), shm_channel_read.cc.
// Threading: owner thread: its endpoint's. Ownership: the endpoint's.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/file.h"
#include "transport/request_table.h"
#include "transport/shm/bootstrap.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace slackline::transport {

class ShmEndpoint;

// What an epoll event points to.
struct ShmPollable {
  enum class Kind : uint8_t { kWake, kListener, kChannel } kind = Kind::kWake;
};

class ShmChannel final : public Channel, public ShmPollable {
 public:
  enum class Role : uint8_t { kConnector, kAcceptor };

  ShmChannel(ShmEndpoint& endpoint, Role role, std::string peer);

  // ---- Channel ----
  Status Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) override;
  Status Reply(const proto::WireHeader& header, ConstBytes payload) override;
  Status SendTaken(uint64_t request_id) override;
  void ResumeReceiving() override;
  void Close() override;
  std::string_view peer() const override { return peer_; }

  // ---- For the endpoint ----
  // Connects at the endpoint's next look at deadlines, and again while the listener's queue is
  // full.
  void StartConnecting(std::string socket_name, TimeNs now_ns, TimeNs timeout_ns);
  // The acceptor's: a hello is to come until the deadline.
  void Adopt(Fd socket, TimeNs deadline_ns);

  // Everything that the segment has, within bounds of bytes and messages.
  void Service();
  // Takes messages from the socket; `hang_up`: the other end is gone.
  void OnSocket(bool hang_up);
  // From now on the peer rings when there is news. False: there is already.
  bool Arm();
  void Disarm();
  // Rings if the peer sleeps and this end wrote or consumed since the last time.
  void RingPeer();
  // The endpoint's memory `id` is gone.
  void ForgetRegion(uint64_t id);

  // When OnDeadline() is due; kNever if it is not.
  TimeNs DeadlineNs() const { return std::min(deadline_ns_, retry_ns_); }
  void OnDeadline(TimeNs now_ns);
  // Fails the channel; an acceptor that never opened is only dropped.
  void Fail(const Status& status);
  // Fences without a report.
  void Shut();

  size_t slot = 0;  // Place among the endpoint's channels.

 private:
  enum class Phase : uint8_t { kConnecting, kGreeting, kOpen, kClosed };

  // ---- shm_channel.cc ----
  void TryConnect(TimeNs now_ns);
  Status SendHello();
  Status MapSegment(const Fd& memory);
  void BecomeOpen();
  // Where `payload` lies, passing its region to the peer at its first use. InvalidArgument: not in
  // memory of this endpoint.
  Status Locate(ConstBytes payload, uint64_t* region, uint64_t* offset);
  bool HasRoom();
  void Push(const proto::WireHeader& header, uint64_t region, uint64_t offset);
  RequestTable::Entry* FindAnswerable(uint64_t request_id);
  // Logs (once a peer and minute), counts, and fails.
  void FailProtocol(const Status& status);

  // ---- shm_channel_read.cc ----
  void HandleMessage(const ShmMessage& message, const Fd& descriptor);
  bool PeerClosed() const;
  void ReportConsumed();
  void ReadMessages(uint64_t available);
  bool BeginMessage();
  void BeginRequest();
  void AskForLanding();
  void BeginReply();
  bool FindSource();
  void FinishMessage();

  ShmEndpoint& endpoint_;
  const Role role_;
  std::string peer_;
  std::string socket_name_;  // Connector, until it is connected.
  Phase phase_ = Phase::kConnecting;
  TimeNs deadline_ns_ = kNever;  // Given up.
  TimeNs retry_ns_ = kNever;     // Connector: the next try.
  TimeNs timeout_ns_ = 0;
  Fd socket_;

  Mapping segment_;
  SharedFlag* own_closed_ = nullptr;
  SharedFlag* own_sleeps_ = nullptr;
  SharedFlag* peer_closed_ = nullptr;
  SharedFlag* peer_sleeps_ = nullptr;
  RingWriter writer_;
  RingReader reader_;
  PeerMemory peer_memory_;
  std::bitset<kMaxShmRegions> passed_;  // Regions of this endpoint that the peer has.
  bool armed_ = false;
  bool ring_due_ = false;
  // What a call found that may not report it: the next Service() fails with it.
  Status doomed_;

  std::unique_ptr<RequestTable> requests_;
  // Acceptor: what it wrote, by position, until it is consumed.
  struct Written {
    uint64_t request_id = 0;
    uint32_t payload_bytes = 0;
    bool is_reply = false;
  };
  std::unique_ptr<std::array<Written, kReplySlots>> written_;
  uint64_t reported_ = 0;  // Positions that were told about.

  // The message that is being received, if any.
  enum class Reading : uint8_t { kNothing, kPayload, kPaused };
  Reading reading_ = Reading::kNothing;
  proto::WireHeader header_;
  uint64_t source_region_ = kNoRegion, source_offset_ = 0;
  const std::byte* source_ = nullptr;
  MutableBytes landing_;
  size_t filled_ = 0;
};

}  // namespace slackline::transport
