// I/O memory: page-aligned, zero-filled, resident from the start, in huge pages where the system
// has them; of this process alone, or a memfd whose descriptor lets other processes read it.
// Threading: owner thread of the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/status.h"
#include "transport/transport.h"

namespace slackline::transport {

class MappedRegion final : public Region {
 public:
  // Counts its bytes in `*in_use_bytes`, which must outlive it, and stays below `limit_bytes`.
  // kReadable: others may map it, to read only, and it never shrinks under them.
  enum class Sharing : uint8_t { kPrivate, kReadable };
  static Result<std::unique_ptr<MappedRegion>> Create(size_t size_bytes, uint64_t limit_bytes,
                                                      uint64_t* in_use_bytes,
                                                      Sharing sharing = Sharing::kPrivate);
  ~MappedRegion() override;

  // The memfd, of mapped_bytes(); -1 for private memory.
  int fd() const { return fd_; }
  size_t mapped_bytes() const { return mapped_bytes_; }

 private:
  MappedRegion(MutableBytes bytes, size_t mapped_bytes, int fd, uint64_t* in_use_bytes);

  const size_t mapped_bytes_;
  const int fd_;
  uint64_t* const in_use_bytes_;
};

}  // namespace slackline::transport
