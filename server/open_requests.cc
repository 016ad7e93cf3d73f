#include "server/open_requests.h"

#include <glog/logging.h>

#include <cstring>

namespace slackline::server {

OpenRequests::OpenRequests(size_t capacity) : entries_(capacity) {
  free_.reserve(capacity);
  for (size_t i = capacity; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

uint32_t OpenRequests::Take() {
  if (free_.empty()) return kNoRequest;
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

void OpenRequests::Free(uint32_t index) {
  OpenRequest& entry = entries_[index];
  const uint32_t generation = entry.generation + 1;
  entry = OpenRequest{};
  entry.generation = generation;
  free_.push_back(index);
}

uint64_t OpenRequests::TicketOf(uint32_t index) const {
  return uint64_t{entries_[index].generation} << 32 | index;
}

uint32_t OpenRequests::FindTicket(uint64_t ticket) const {
  const auto index = static_cast<uint32_t>(ticket);
  if (index >= entries_.size() || entries_[index].generation != ticket >> 32) return kNoRequest;
  return index;
}

Result<std::unique_ptr<ReceiveSlots>> ReceiveSlots::Create(transport::Endpoint& endpoint,
                                                           size_t count, size_t slot_bytes) {
  std::unique_ptr<ReceiveSlots> slots(new ReceiveSlots());
  // Whole cache lines a slot, so that neighbours do not share one.
  slots->slot_bytes_ = (slot_bytes + 63) / 64 * 64;
  SLACKLINE_ASSIGN_OR_RETURN(slots->region_, endpoint.Allocate(count * slots->slot_bytes_));
  std::memset(slots->region_->bytes().data(), 0, slots->region_->bytes().size());
  slots->owners_.assign(count, nullptr);
  slots->free_.reserve(count);
  for (size_t i = count; i > 0; --i) slots->free_.push_back(static_cast<int32_t>(i - 1));
  return slots;
}

int32_t ReceiveSlots::Take(Peer* peer) {
  if (free_.empty()) return -1;
  // The slot that was freed last: its lines are still in the cache.
  const int32_t slot = free_.back();
  free_.pop_back();
  owners_[static_cast<size_t>(slot)] = peer;
  return slot;
}

void ReceiveSlots::Free(int32_t slot) {
  owners_[static_cast<size_t>(slot)] = nullptr;
  free_.push_back(slot);
}

MutableBytes ReceiveSlots::bytes(int32_t slot) const {
  return region_->bytes().subspan(static_cast<size_t>(slot) * slot_bytes_, slot_bytes_);
}

int32_t ReceiveSlots::Find(const std::byte* payload) const {
  const std::byte* base = region_->bytes().data();
  CHECK(payload >= base && payload < base + region_->bytes().size())
      << "a payload landed outside of the receive slots: the transport's bug";
  return static_cast<int32_t>(static_cast<size_t>(payload - base) / slot_bytes_);
}

void ReceiveSlots::FreeUnfilled(const Peer* peer) {
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == peer) Free(static_cast<int32_t>(i));
  }
}

}  // namespace slackline::server
