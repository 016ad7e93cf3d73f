// One end of a simulated connection. Internal to transport/sim; others see transport::Channel.
//
// A message waits in the receiving end's `incoming` row until its arrival event, then in `inbox`
// until Poll, then (with a payload) until its landing is complete. A sender's payload is read where
// it lies until the sender may have forgotten it; then (OnReplySent, a cut, a close) what is still
// to arrive is read from a copy, as from a kernel's buffer.
// Threading: the network's thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire_header.h"
#include "transport/transport.h"

namespace slackline::transport {

class SimNetwork;
class SimEndpoint;

// One message under way, or the news that the connection is gone.
struct SimMessage {
  bool is_close = false;
  std::array<std::byte, proto::kWireHeaderBytes> header_bytes{};
  ConstBytes payload;  // Of the sender, or of `copy`.
  std::vector<std::byte> copy;
  uint64_t payload_hash = 0;
  bool lost = false;  // Will not arrive; its connection was cut.
  bool torn = false;  // Only a part of it will.
  Status status;      // is_close
};

class SimChannel final : public Channel {
 public:
  enum class State : uint8_t { kConnecting, kOpen, kClosed };

  SimChannel(SimNetwork& network, SimEndpoint& endpoint, uint64_t id, std::string peer,
             State state);

  Status Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) override;
  Status Reply(const proto::WireHeader& header, ConstBytes payload) override;
  Status SendTaken(uint64_t request_id) override;
  void ResumeReceiving() override;
  void Close() override;
  std::string_view peer() const override { return peer_; }

 private:
  friend class SimNetwork;
  friend class SimEndpoint;

  struct OpenRequest {  // This end sent it.
    ConstBytes payload;
    uint64_t payload_hash = 0;
    MutableBytes landing;
  };
  struct UnsentReply {  // OnReplySent is to come.
    uint64_t request_id = 0;
    std::shared_ptr<SimMessage> message;
  };
  struct Landed {         // The payload of inbox.front() on its way into memory.
    MutableBytes memory;  // Empty: it is drained.
    size_t filled = 0;
    bool complete = false;
  };
  // What became of a message that was looked at.
  enum class Progress : uint8_t { kDone, kWaits };

  // ---- sim_channel_send.cc
  std::shared_ptr<SimMessage> Transmit(const proto::WireHeader& header, ConstBytes payload);
  // Gives the memory of this end's first `through` replies back to the handler, in their order.
  void ReleaseReplies(uint64_t through);
  // The same through the last reply to this id: its next use must not overtake OnReplySent.
  void ReleaseRepliesTo(uint64_t request_id);
  // No more bytes leave this end: decides how much of what is under way still arrives.
  void Sever();
  // Tells the other end, after what still arrives and `delay_ns`.
  void AnnounceClose(std::string_view why, TimeNs delay_ns);
  // Makes the message independent of its sender's memory.
  void KeepCopy(SimMessage& message);
  void CheckUnchanged(ConstBytes payload, uint64_t hash, std::string_view when);
  // Ends this end without a word to the handler.
  void Die(std::string_view why);

  // ---- sim_channel_receive.cc
  void Deliver(std::shared_ptr<SimMessage> message, TimeNs delay_ns);
  void OnArrival();
  void ScheduleArrival(TimeNs when_ns);
  void OnHealed();
  // Handles what is in the inbox, as far as it goes now. The channel may be closed after it.
  void Receive();
  Progress ReceiveFront();
  Progress ReceiveRequest(const SimMessage& message, const proto::WireHeader& header);
  Progress ReceiveReply(const SimMessage& message, const proto::WireHeader& header);
  Progress ReceiveTaken(const proto::WireHeader& header);
  // Begins to fill `memory` with the front's payload; kDone if that is all, or nothing is to come.
  Progress StartLanding(const SimMessage& message, MutableBytes memory);
  void FinishLanding(uint64_t landing);
  // A landing that will never be complete.
  void Poison();
  bool MaybeDuplicate(const SimMessage& message, const proto::WireHeader& header);
  // The connection is gone, or (`protocol_error`) the peer's bytes are wrong: tells the handler.
  void Fail(const Status& status, bool protocol_error);

  SimNetwork& network_;
  SimEndpoint& endpoint_;
  const uint64_t id_;
  uint64_t peer_id_ = 0;      // The other end; 0 as long as there is none.
  const std::string peer_;    // An address.
  std::string peer_process_;  // The other end's SimEndpoint::process_name().
  State state_;
  bool severed_ = false;  // Nothing that this end sends arrives any more.

  // Sending.
  std::map<uint64_t, OpenRequest> open_requests_;
  std::deque<UnsentReply> unsent_replies_;
  uint64_t replies_ = 0;           // Ever.
  uint64_t replies_released_ = 0;  // Of them; the others are in unsent_replies_.
  TimeNs last_release_ns_ = 0;

  // Receiving.
  std::deque<std::shared_ptr<SimMessage>> incoming_;  // Not arrived.
  TimeNs last_arrival_ns_ = 0;
  size_t held_back_ = 0;   // Arrivals that a partition stopped.
  TimeNs lingers_ns_ = 0;  // Nothing arrives before: a cut connection's last messages are late.
  std::deque<std::shared_ptr<SimMessage>> inbox_;
  std::unique_ptr<Landed> landed_;
  uint64_t landing_number_ = 0;  // Of landed_: tells its completion from an older one's.
  bool paused_ = false;
  bool duplicate_decided_ = false;       // For inbox.front().
  std::map<uint64_t, bool> unanswered_;  // Requests that were delivered: whether taken.
  std::set<uint64_t> duplicates_;        // Of them, those that no one sent: replies go nowhere.
};

}  // namespace slackline::transport
