// A shared-memory peer made of bare parts, for tests: it says and writes what it likes.
// Threading: owner thread.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "proto/wire_header.h"
#include "transport/address.h"
#include "transport/shm/bootstrap.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/segment.h"

namespace slackline::transport {

class ShmRawPeer {
 public:
  // Connects; says nothing yet.
  explicit ShmRawPeer(std::string_view address) {
    const auto name = SocketName(ParseAddress(address, "shm").value()).value();
    connected_ = ConnectLocal(name, &socket_) == 0;
    memory_ = CreateSegmentMemory(sizeof(SharedSegment)).value();
    mapping_ = Mapping::Create(memory_, sizeof(SharedSegment), /*writable=*/true).value();
  }

  bool connected() const { return connected_; }
  SharedSegment& segment() { return *reinterpret_cast<SharedSegment*>(mapping_.data()); }
  std::byte* segment_bytes() { return mapping_.data(); }
  const Fd& memory() const { return memory_; }
  void Say(const ShmMessage& message, int descriptor = -1) {
    (void)SendShmMessage(socket_, message, descriptor);
  }
  void SayHello() {
    Say({.kind = ShmKind::kHello, .size_bytes = sizeof(SharedSegment)}, memory_.get());
  }
  // What the other end said, if anything.
  ShmReceived Hear() {
    Result<ShmReceived> received = ReceiveShmMessage(socket_);
    return received ? std::move(*received) : ShmReceived{};
  }
  // Writes a request into the next slot.
  void Write(const proto::WireHeader& header, uint64_t region = kNoRegion, uint64_t offset = 0) {
    SharedSlot& slot = segment().requests.slots[written_ % kRequestSlots];
    proto::EncodeWireHeader(header, slot.header);
    slot.region = region;
    slot.offset = offset;
    segment().requests.tail.value.store(++written_, std::memory_order_release);
  }
  void HangUp() { socket_.Reset(); }

 private:
  Fd socket_, memory_;
  Mapping mapping_;
  bool connected_ = false;
  uint64_t written_ = 0;
};

}  // namespace slackline::transport
