// Fixed tables behind a shard's requests: who is connected, which requests are not answered yet,
// and where arriving payloads land. All are sized at start-up; a full one is back-pressure.
//
// Threading: owner thread: the shard's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/wire_header.h"
#include "server/chunk_store.h"
#include "transport/transport.h"

namespace slackline::server {

// One connection. Reachable from its channel's context().
struct Peer {
  transport::Channel* channel = nullptr;  // Null: the entry is free.
  bool greeted = false;                   // kHello was accepted: worker and incarnation hold.
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  TimeNs opened_at = 0;
  bool waits_for_slot = false;    // Told to wait (Landing::Later); in the shard's queue.
  uint32_t sending = kNoRequest;  // Replies with a payload in flight, oldest first.
  uint32_t sending_tail = kNoRequest;
};

// A request from its arrival until the reply's payload has left.
struct OpenRequest {
  enum class State : uint8_t {
    kFree,
    kWaiting,   // A pull that the consistency rule has not released; in its chunk's list.
    kHeld,      // A push whose turn has not come; in the shard's list.
    kReducing,  // A contribution whose round is not complete; in its round's list.
    kSending,   // Its reply pins memory; in its peer's list.
  };
  State state = State::kFree;
  proto::ReplyStatus status = proto::ReplyStatus::kOk;  // For the reply, when weights go with it.
  uint32_t generation =
      1;  // Tells a ticket of this entry from one of an earlier use; no ticket is 0.
  uint32_t next = kNoRequest;
  uint32_t local = 0;        // The shard's number of the chunk.
  uint32_t* pins = nullptr;  // kSending: of what the reply is sent from.
  int32_t slot = -1;         // kHeld: the receive slot with its payload.
  Peer* peer = nullptr;
  TimeNs since = 0;
  proto::WireHeader header;
};

// Pool of OpenRequests, named by index or, where an entry may have been reused, by ticket.
class OpenRequests {
 public:
  explicit OpenRequests(size_t capacity);

  // kNoRequest: all are in use.
  uint32_t Take();
  void Free(uint32_t index);
  OpenRequest& at(uint32_t index) { return entries_[index]; }
  size_t size() const { return entries_.size(); }
  size_t in_use() const { return entries_.size() - free_.size(); }

  uint64_t TicketOf(uint32_t index) const;
  // kNoRequest if the entry was freed since.
  uint32_t FindTicket(uint64_t ticket) const;

 private:
  std::vector<OpenRequest> entries_;
  std::vector<uint32_t> free_;
};

// Equal buffers, each large enough for any push of the shard.
class ReceiveSlots {
 public:
  static Result<std::unique_ptr<ReceiveSlots>> Create(transport::Endpoint& endpoint, size_t count,
                                                      size_t slot_bytes);
  // A free slot for `peer`; -1: none.
  int32_t Take(Peer* peer);
  void Free(int32_t slot);
  MutableBytes bytes(int32_t slot) const;
  // The slot that `payload` lies in.
  int32_t Find(const std::byte* payload) const;
  // From now on the slot is the shard's own and outlives its peer's channel.
  void Claim(int32_t slot) { owners_[static_cast<size_t>(slot)] = nullptr; }
  // Frees the slots that still were to be filled by `peer`, whose channel closed.
  void FreeUnfilled(const Peer* peer);
  size_t free_count() const { return free_.size(); }
  size_t size() const { return owners_.size(); }

 private:
  ReceiveSlots() = default;
  std::unique_ptr<transport::Region> region_;
  size_t slot_bytes_ = 0;
  std::vector<Peer*> owners_;  // Of slots being filled.
  std::vector<int32_t> free_;
};

}  // namespace slackline::server
