// The messages that one channel has yet to write, in order: a ring of encoded headers with views of
// their payloads. Several messages leave in one gather write.
// Threading: owner thread. Allocation: in the constructor only.
// Ownership: payloads are the caller's and stay valid until their message was popped or dropped.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/types.h"
#include "proto/wire_header.h"

namespace slackline::transport {

class SendQueue {
 public:
  struct Message {
    std::array<std::byte, proto::kWireHeaderBytes> header;
    ConstBytes payload;
    uint64_t request_id = 0;
    proto::MessageKind kind = proto::MessageKind::kHello;

    size_t size_bytes() const { return header.size() + payload.size(); }
  };

  // `capacity`: a power of two. The owner never queues more.
  explicit SendQueue(size_t capacity);

  bool empty() const { return head_ == tail_; }
  size_t size() const { return static_cast<size_t>(tail_ - head_); }
  bool full() const { return size() == capacity_; }

  // Encodes the header behind the last message. The queue must not be full.
  void Push(const proto::WireHeader& header, ConstBytes payload);

  // Fills `vectors` with what is to be written next, at most `budget_bytes` of it (> 0). Returns
  // the vectors used and sets their total.
  size_t Gather(std::span<iovec> vectors, size_t budget_bytes, size_t* total_bytes) const;

  // Notes that `written_bytes` of the gathered bytes are out.
  void Advance(size_t written_bytes) { head_written_bytes_ += written_bytes; }
  // The first message if all of it is out, else null. Pop() it before looking for the next.
  const Message* FinishedHead() const;
  void Pop();
  void Clear();

 private:
  const Message& at(uint64_t position) const { return ring_[position & (capacity_ - 1)]; }

  const size_t capacity_;
  std::unique_ptr<Message[]> ring_;
  uint64_t head_ = 0, tail_ = 0;   // Count messages for ever; the mask makes them slots.
  size_t head_written_bytes_ = 0;  // Written, counted from the head message's first byte.
};

}  // namespace slackline::transport
