// A bounded queue whose places can be named: place p holds the element that was pushed p-th, until
// it is popped.
// Threading: owner thread. Allocation: in the constructor only.
#pragma once

#include <glog/logging.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace slackline::transport {

template <typename T>
class Ring {
 public:
  // `capacity`: a power of two.
  explicit Ring(size_t capacity) : mask_(capacity - 1), elements_(std::make_unique<T[]>(capacity)) {
    CHECK(std::has_single_bit(capacity)) << capacity;
  }

  bool empty() const { return head_ == tail_; }
  size_t size() const { return static_cast<size_t>(tail_ - head_); }
  bool full() const { return size() == mask_ + 1; }
  uint64_t head() const { return head_; }
  uint64_t tail() const { return tail_; }
  T& at(uint64_t place) { return elements_[place & mask_]; }
  const T& at(uint64_t place) const { return elements_[place & mask_]; }
  T& front() { return at(head_); }

  // The owner bounds what it pushes.
  void Push(const T& element) {
    CHECK(!full()) << "a bound elsewhere was meant to prevent it";
    at(tail_++) = element;
  }
  void Pop() { ++head_; }
  void Clear() { head_ = tail_; }

 private:
  const size_t mask_;
  std::unique_ptr<T[]> elements_;
  uint64_t head_ = 0, tail_ = 0;
};

}  // namespace slackline::transport
