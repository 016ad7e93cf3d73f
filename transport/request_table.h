// The open requests of one channel, by request id: a fixed open-addressing hash table, so that
// nothing allocates and a peer cannot make it grow.
// Threading: owner thread. Allocation: in the constructor only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/types.h"
#include "transport/transport.h"

namespace slackline::transport {

class RequestTable {
 public:
  struct Entry {
    uint64_t id = 0;
    MutableBytes landing;  // Connector: where the reply's payload goes.
    bool used = false;
    bool taken_sent = false;    // Acceptor: kTaken was queued.
    bool reply_queued = false;  // Acceptor: the reply was queued and is not sent yet.
    uint32_t tag = 0;           // The transport's own.
  };

  RequestTable();

  size_t size() const { return size_; }
  bool full() const { return size_ == kMaxOpenRequests; }
  // Null: not there. Valid until the next Insert or Erase.
  Entry* Find(uint64_t id);
  // Null: the id is there already, or the table is full.
  Entry* Insert(uint64_t id);
  // False: not there.
  bool Erase(uint64_t id);
  void Clear();

 private:
  // At most half full: probes stay short.
  static constexpr size_t kSlots = 2 * kMaxOpenRequests;
  static_assert((kSlots & (kSlots - 1)) == 0, "slots are found with a mask");

  static size_t HomeOf(uint64_t id);
  // Slot of `id`, or of the free slot where it would go.
  size_t Probe(uint64_t id) const;

  std::unique_ptr<Entry[]> slots_;
  size_t size_ = 0;
};

}  // namespace slackline::transport
