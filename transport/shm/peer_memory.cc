#include "transport/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace slackline::transport {
namespace {

// Mapped memory up to this size is made resident at once; of more, the first touch of each 64 KiB
// costs a fault, so that a large model does not hold the channels up for as long.
constexpr size_t kPopulateBytes = 256u << 20;

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Mapping::Unmap() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
}

Result<Mapping> Mapping::Create(const Fd& memory, uint64_t size_bytes, bool writable) {
  struct stat file = {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  const bool fits = fstat(memory.get(), &file) == 0 && size_bytes > 0 &&
                    size_bytes <= kMaxShmRegionBytes &&
                    static_cast<uint64_t>(file.st_size) >= size_bytes;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !fits) {
    return Err(InvalidArgument("passed memory that is not " + std::to_string(size_bytes) +
                               " bytes sealed against shrinking (has " +
                               std::to_string(file.st_size) + ", seals " + std::to_string(seals) +
                               ")"));
  }
  void* data = mmap(nullptr, size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                    memory.get(), 0);
  if (data == MAP_FAILED) {
    return Err(ErrnoStatus(errno == EPERM || errno == EACCES ? EINVAL : ENOMEM,
                           "mapping " + std::to_string(size_bytes) + " bytes that a peer shares"));
  }
  if (size_bytes <= kPopulateBytes) {
    (void)madvise(data, size_bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size_bytes;
  return mapping;
}

Status PeerMemory::Add(uint64_t id, uint64_t size_bytes, const Fd& memory) {
  Entry& entry = entries_[id % kMaxShmRegions];
  if (id == 0 || entry.id != 0) {
    return InvalidArgument("passed memory " + std::to_string(id) + " where " +
                           std::to_string(entry.id) + " is");
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(entry.mapping,
                                    Mapping::Create(memory, size_bytes, /*writable=*/false));
  entry.id = id;
  return OkStatus();
}

Status PeerMemory::Remove(uint64_t id) {
  if (!Knows(id))
    return InvalidArgument("took back memory " + std::to_string(id) + " that it had not passed");
  entries_[id % kMaxShmRegions] = {};
  return OkStatus();
}

ConstBytes PeerMemory::Find(uint64_t id, uint64_t offset, size_t size_bytes) const {
  if (!Knows(id)) return {};
  const Mapping& mapping = entries_[id % kMaxShmRegions].mapping;
  if (offset > mapping.size() || size_bytes > mapping.size() - offset) return {};
  return {mapping.data() + offset, size_bytes};
}

Result<Fd> CreateSegmentMemory(size_t size_bytes) {
  Fd memory(memfd_create("slackline-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Err(ErrnoStatus(errno, "memory for a channel's segment"));
  }
  return memory;
}

}  // namespace slackline::transport
