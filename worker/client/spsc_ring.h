// A bounded queue from one thread to one other, without locks.
// Threading: TryPush by one thread, TryPop by one other. Allocation: only in the constructor.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <vector>

namespace slackline::worker {

template <typename T>
class SpscRing {
 public:
  // Holds at least `capacity` items.
  explicit SpscRing(size_t capacity)
      : items_(std::bit_ceil(capacity + 1)), mask_(items_.size() - 1) {}

  // False when full.
  bool TryPush(const T& item) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    // Acquire: the popper is done with the place before it is written again.
    if (tail - head_.load(std::memory_order_acquire) == items_.size()) return false;
    items_[tail & mask_] = item;
    // Release: the item is whole before its count shows.
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // False when empty.
  bool TryPop(T* item) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    *item = items_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // For the popper: nothing is there now.
  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }

 private:
  std::vector<T> items_;
  const size_t mask_;
  // Apart, so that the two threads do not share a cache line.
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
};

}  // namespace slackline::worker
