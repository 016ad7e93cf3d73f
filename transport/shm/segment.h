// What the two ends of a shared-memory channel share: two rings of message headers, and who closed
// or sleeps. Payloads are not in it: a message names a place in its sender's own memory, and the
// receiver copies from there, once, to where the payload belongs.
//
// Everything in here may change at any moment under a reader that trusts nobody: positions are
// checked against what this end knows, a slot is copied out before it is looked at.
//
// Order: a writer fills the slot and then stores `tail` (release); a reader loads `tail` (acquire),
// and stores `head` (release) when it is done with a message AND its payload. So a `head` that the
// writer sees (acquire) gives it the slots and the payloads' memory back.
// Threading: each position is written by one end's owner thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>

#include "common/status.h"
#include "common/types.h"
#include "proto/wire_header.h"
#include "transport/transport.h"

namespace slackline::transport {

inline constexpr size_t kCacheLineBytes = 64;

struct alignas(kCacheLineBytes) SharedPosition {
  std::atomic<uint64_t> value;
};
struct alignas(kCacheLineBytes) SharedFlag {
  std::atomic<uint32_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

// A message: the wire header, and where its payload lies.
struct alignas(kCacheLineBytes) SharedSlot {
  std::array<std::byte, proto::kWireHeaderBytes> header;
  uint64_t region;  // Of the sender; kNoRegion without payload.
  uint64_t offset;  // In the region.
};
inline constexpr uint64_t kNoRegion = 0;

template <size_t kSlots>
struct SharedRing {
  static_assert((kSlots & (kSlots - 1)) == 0, "slots are found with a mask");
  SharedPosition tail, head;  // Count messages for ever.
  std::array<SharedSlot, kSlots> slots;
};

// Open requests bound both: a request has one message, and at most a taken and a reply.
inline constexpr size_t kRequestSlots = kMaxOpenRequests;
inline constexpr size_t kReplySlots = 2 * kMaxOpenRequests;

// Zero-filled at first.
struct SharedSegment {
  SharedFlag connector_closed, acceptor_closed;  // Memory named by messages is not to be trusted.
  SharedFlag connector_sleeps, acceptor_sleeps;  // Ring when there is news.
  SharedRing<kRequestSlots> requests;            // From the connector.
  SharedRing<kReplySlots> replies;               // From the acceptor.
};

// One end's view of a ring.
struct RingView {
  SharedPosition* tail = nullptr;
  SharedPosition* head = nullptr;
  SharedSlot* slots = nullptr;
  uint64_t count = 0;

  template <size_t kSlots>
  static RingView Of(SharedRing<kSlots>& ring) {
    return {&ring.tail, &ring.head, ring.slots.data(), kSlots};
  }
  SharedSlot& at(uint64_t position) const { return slots[position & (count - 1)]; }
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(const RingView& ring) : ring_(ring) {}

  uint64_t written() const { return tail_; }
  bool full() const { return tail_ - consumed_ == ring_.count; }
  // The ring must not be full.
  void Push(const proto::WireHeader& header, uint64_t region, uint64_t offset) {
    SharedSlot& slot = ring_.at(tail_);
    proto::EncodeWireHeader(header, slot.header);
    slot.region = region;
    slot.offset = offset;
    ring_.tail->value.store(++tail_, std::memory_order_release);
  }
  // Messages that the reader is done with. Nullopt: it claims what cannot be.
  std::optional<uint64_t> Consumed() {
    const uint64_t head = ring_.head->value.load(std::memory_order_acquire);
    if (head - consumed_ > tail_ - consumed_) return std::nullopt;
    consumed_ = head;
    return head;
  }
  bool HasNews() const { return ring_.head->value.load(std::memory_order_relaxed) != consumed_; }

 private:
  RingView ring_;
  uint64_t tail_ = 0, consumed_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const RingView& ring) : ring_(ring) {}

  // Messages to read. Nullopt: the writer claims what cannot be.
  std::optional<uint64_t> Available() const {
    const uint64_t count = ring_.tail->value.load(std::memory_order_acquire) - head_;
    if (count > ring_.count) return std::nullopt;
    return count;
  }
  // A copy of the next one.
  SharedSlot Front() const {
    SharedSlot slot;
    std::memcpy(&slot, &ring_.at(head_), sizeof slot);
    return slot;
  }
  void Pop() { ring_.head->value.store(++head_, std::memory_order_release); }

 private:
  RingView ring_;
  uint64_t head_ = 0;
};

}  // namespace slackline::transport
