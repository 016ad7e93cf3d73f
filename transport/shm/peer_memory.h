// The memory of the other end of a channel, mapped here to be read, and mapped segments.
// A peer may lie about what it passed: what could shrink is refused (reading past its end would be
// a SIGBUS), and so is more than the bounds below.
// Threading: owner thread. Ownership: unmaps with the object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/file.h"
#include "common/status.h"
#include "common/types.h"

namespace slackline::transport {

// Regions of one endpoint at one time.
inline constexpr size_t kMaxShmRegions = 256;
inline constexpr uint64_t kMaxShmRegionBytes = uint64_t{1} << 40;

// Mapped shared memory, movable.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { Unmap(); }
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  // Maps the first `size_bytes` of a memfd that must be as long and sealed against shrinking.
  // InvalidArgument: it is not. ResourceExhausted: the system refuses.
  static Result<Mapping> Create(const Fd& memory, uint64_t size_bytes, bool writable);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool valid() const { return data_ != nullptr; }

 private:
  void Unmap();
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class PeerMemory {
 public:
  // Region ids are above 0 and taken so that ids of regions that live at one time differ modulo
  // kMaxShmRegions. InvalidArgument: an id of 0, in use, or whose place is; Mapping's errors.
  Status Add(uint64_t id, uint64_t size_bytes, const Fd& memory);
  // InvalidArgument: not there.
  Status Remove(uint64_t id);
  bool Knows(uint64_t id) const { return id != 0 && entries_[id % kMaxShmRegions].id == id; }
  // Where the peer's `offset` in region `id` is here. Empty: not there, or not inside of it.
  ConstBytes Find(uint64_t id, uint64_t offset, size_t size_bytes) const;

 private:
  struct Entry {
    uint64_t id = 0;
    Mapping mapping;
  };
  std::array<Entry, kMaxShmRegions> entries_;
};

// A zero-filled memfd of this size for a segment: both ends write, neither can shrink it.
Result<Fd> CreateSegmentMemory(size_t size_bytes);

}  // namespace slackline::transport
