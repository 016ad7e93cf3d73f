// A fixed place for the memory of one pending Asio operation, so that waiting for a socket does not
// allocate. Each operation that can be pending at one time has a slot of its own.
// Threading: one operation at a time uses a slot; the caller's logic makes sure of it.
// Ownership: a slot must outlive its operation (until its handler has run or its io_context is
// gone).
#pragma once

#include <glog/logging.h>

#include <boost/asio/bind_allocator.hpp>
#include <cstddef>
#include <new>
#include <utility>

namespace slackline::transport {

class HandlerSlot {
 public:
  // Asio's largest operation here (accept, with its peer's address) takes about 300 bytes.
  static constexpr size_t kBytes = 512;

  HandlerSlot() = default;
  HandlerSlot(const HandlerSlot&) = delete;
  HandlerSlot& operator=(const HandlerSlot&) = delete;

  void* Allocate(size_t size_bytes) {
    CHECK(!used_) << "two pending operations share a slot";
    CHECK_LE(size_bytes, kBytes) << "raise HandlerSlot::kBytes";
    used_ = true;
    return storage_;
  }
  void Deallocate(void*) { used_ = false; }

 private:
  alignas(std::max_align_t) std::byte storage_[kBytes];
  bool used_ = false;
};

template <typename T>
class SlotAllocator {
 public:
  using value_type = T;
  explicit SlotAllocator(HandlerSlot* slot) : slot_(slot) {}
  template <typename U>
  SlotAllocator(const SlotAllocator<U>& other) : slot_(other.slot()) {}

  T* allocate(size_t count) { return static_cast<T*>(slot_->Allocate(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { slot_->Deallocate(memory); }
  HandlerSlot* slot() const { return slot_; }

  template <typename U>
  friend bool operator==(const SlotAllocator& a, const SlotAllocator<U>& b) {
    return a.slot() == b.slot();
  }

 private:
  HandlerSlot* slot_;
};

// The handler, with its operation's memory in `slot`.
template <typename Function>
auto InSlot(HandlerSlot& slot, Function&& handler) {
  return boost::asio::bind_allocator(SlotAllocator<std::byte>(&slot),
                                     std::forward<Function>(handler));
}

}  // namespace slackline::transport
