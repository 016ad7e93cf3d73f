#include "transport/tcp/send_queue.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>

namespace slackline::transport {

SendQueue::SendQueue(size_t capacity)
    : capacity_(capacity), ring_(std::make_unique_for_overwrite<Message[]>(capacity)) {
  CHECK(std::has_single_bit(capacity)) << capacity;
}

void SendQueue::Push(const proto::WireHeader& header, ConstBytes payload) {
  CHECK(!full()) << "the owner bounds its messages by its open requests";
  Message& message = ring_[tail_ & (capacity_ - 1)];
  proto::EncodeWireHeader(header, message.header);
  message.payload = payload;
  message.request_id = header.request_id;
  message.kind = header.kind;
  ++tail_;
}

size_t SendQueue::Gather(std::span<iovec> vectors, size_t budget_bytes, size_t* total_bytes) const {
  size_t used = 0;
  size_t total = 0;
  size_t skip = head_written_bytes_;
  const auto add = [&](ConstBytes part) {
    if (skip >= part.size()) {
      skip -= part.size();
      return;
    }
    part = part.subspan(skip);
    skip = 0;
    const size_t take = std::min(part.size(), budget_bytes - total);
    // sendmsg only reads; iovec has one type for both directions.
    vectors[used++] = {const_cast<std::byte*>(part.data()), take};
    total += take;
  };
  for (uint64_t position = head_; position != tail_; ++position) {
    if (used + 2 > vectors.size() || total == budget_bytes) break;
    const Message& message = at(position);
    add(message.header);
    if (total < budget_bytes) add(message.payload);
  }
  *total_bytes = total;
  return used;
}

const SendQueue::Message* SendQueue::FinishedHead() const {
  if (empty() || head_written_bytes_ < at(head_).size_bytes()) return nullptr;
  return &at(head_);
}

void SendQueue::Pop() {
  head_written_bytes_ -= at(head_).size_bytes();
  ++head_;
}

void SendQueue::Clear() {
  head_ = tail_;
  head_written_bytes_ = 0;
}

}  // namespace slackline::transport
