// What readers of a chunk hold when weights travel in a codec that loses much: a reference that
// follows the master, and the last steps that brought it there.
//
// Each version of a chunk is published once: the difference between the master and the reference is
// encoded, and what it decodes to is added to the reference. What the codec dropped is therefore
// still in the next difference: the reference is its own error feedback. Every reader and every
// resend of a version gets the same bytes and makes the same FP32 additions, so that all hold the
// same reference, bit for bit. A reader that is some versions behind gets that many deltas, one
// behind the other; one that is further behind, or new, gets the whole reference as FP32.
// Threading: owner thread: the shard's. Ownership: memory is the chunk store's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace slackline::server {

// The most deltas that one reply holds. Fewer are kept where so many outweigh the reference.
inline constexpr uint32_t kMaxKeptDeltas = 8;
// One more than a reply takes, so that a version can be published while the reply leaves.
inline constexpr uint32_t kMaxDeltaSlots = kMaxKeptDeltas + 1;

struct Published {
  // The delta that leads to version v lies in slot v % slots, and again `slots` slots behind it, so
  // that any run of deltas lies in one piece.
  std::byte* deltas = nullptr;
  size_t delta_bytes = 0;
  uint32_t slots = 0;   // 0: weights do not travel as deltas.
  uint64_t oldest = 0;  // Readers at this version or a later one can have deltas.
  // Replies in flight whose oldest delta is the slot's. Slots are overwritten in order, so that the
  // newer ones of a run are safe with it.
  std::array<uint32_t, kMaxDeltaSlots> pins{};

  bool in_use() const { return slots != 0; }
  uint32_t SlotOf(uint64_t version) const { return static_cast<uint32_t>(version % slots); }
  std::byte* Delta(uint64_t version) const { return deltas + SlotOf(version) * delta_bytes; }
  // How many deltas lead a reader from its version to `current`; nullopt: it needs everything.
  std::optional<uint32_t> DeltasFrom(uint64_t reader, uint64_t current,
                                     size_t reference_bytes) const {
    if (reader < oldest || reader > current) return std::nullopt;
    const uint64_t behind = current - reader;
    if (behind >= slots || behind * delta_bytes > reference_bytes) return std::nullopt;
    return static_cast<uint32_t>(behind);
  }
};

}  // namespace slackline::server
