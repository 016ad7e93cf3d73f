// Intrusive lists and a bitmap over a fixed set of slots: the queues of a client's links. A slot is
// in at most one list at a time, so that moving it is O(1) and allocates nothing.
// Threading: values; the owner's thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace slackline::worker {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

// A list's hooks, a member `links` of the slot type.
struct SlotLinks {
  uint32_t previous = kNoSlot;
  uint32_t next = kNoSlot;
};

// A first-in first-out list of indices into a vector of slots, which the caller passes each time.
class SlotList {
 public:
  bool empty() const { return head_ == kNoSlot; }
  uint32_t front() const { return head_; }
  uint32_t back() const { return tail_; }

  template <typename Slot>
  void PushBack(std::vector<Slot>& slots, uint32_t index) {
    slots[index].links = {tail_, kNoSlot};
    (tail_ == kNoSlot ? head_ : slots[tail_].links.next) = index;
    tail_ = index;
  }

  template <typename Slot>
  void Remove(std::vector<Slot>& slots, uint32_t index) {
    const SlotLinks links = slots[index].links;
    (links.previous == kNoSlot ? head_ : slots[links.previous].links.next) = links.next;
    (links.next == kNoSlot ? tail_ : slots[links.next].links.previous) = links.previous;
    slots[index].links = {};
  }

  // Puts all of `other`, in its order, before this list's own; `other` is empty afterwards.
  template <typename Slot>
  void PrependAll(std::vector<Slot>& slots, SlotList& other) {
    if (other.empty()) return;
    if (empty()) {
      tail_ = other.tail_;
    } else {
      slots[other.tail_].links.next = head_;
      slots[head_].links.previous = other.tail_;
    }
    head_ = other.head_;
    other = {};
  }

 private:
  uint32_t head_ = kNoSlot;
  uint32_t tail_ = kNoSlot;
};

// A set of small numbers that hands out its smallest: requests that were never sent, ordered by
// when the next forward needs them.
class ReadySet {
 public:
  explicit ReadySet(size_t size = 0) : words_((size + 63) / 64) {}

  void Insert(uint32_t number) {
    const size_t word = number / 64;
    words_[word] |= uint64_t{1} << (number % 64);
    if (word < first_word_) first_word_ = word;
  }
  void Erase(uint32_t number) { words_[number / 64] &= ~(uint64_t{1} << (number % 64)); }

  // kNoSlot when empty. Words in front of `first_word_` are empty, which keeps a pass over the
  // whole set linear.
  uint32_t First() {
    for (; first_word_ < words_.size(); ++first_word_) {
      if (const uint64_t bits = words_[first_word_]; bits != 0) {
        return static_cast<uint32_t>(first_word_ * 64 +
                                     static_cast<size_t>(std::countr_zero(bits)));
      }
    }
    return kNoSlot;
  }

 private:
  std::vector<uint64_t> words_;
  size_t first_word_ = 0;
};

}  // namespace slackline::worker
