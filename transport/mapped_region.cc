#include "transport/mapped_region.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace slackline::transport {
namespace {

constexpr size_t kHugePageBytes = 2u << 20;

// A sealed memfd of `size_bytes`, or -1 with errno.
int CreateMemory(size_t size_bytes) {
  const int fd = memfd_create("slackline", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

MappedRegion::MappedRegion(MutableBytes bytes, size_t mapped_bytes, int fd, uint64_t* in_use_bytes)
    : Region(bytes), mapped_bytes_(mapped_bytes), fd_(fd), in_use_bytes_(in_use_bytes) {
  *in_use_bytes_ += mapped_bytes_;
}

MappedRegion::~MappedRegion() {
  *in_use_bytes_ -= mapped_bytes_;
  PCHECK(munmap(bytes_.data(), mapped_bytes_) == 0) << "a region that we mapped";
  if (fd_ >= 0) close(fd_);
}

Result<std::unique_ptr<MappedRegion>> MappedRegion::Create(size_t size_bytes, uint64_t limit_bytes,
                                                           uint64_t* in_use_bytes,
                                                           Sharing sharing) {
  if (size_bytes == 0) return Err(InvalidArgument("a region of 0 bytes was asked for"));
  if (size_bytes > limit_bytes || *in_use_bytes > limit_bytes - size_bytes) {
    return Err(ResourceExhausted(
        std::to_string(size_bytes) + " bytes of I/O memory were asked for with " +
        std::to_string(*in_use_bytes) + " in use, and the endpoint's limit is " +
        std::to_string(limit_bytes) + ": raise EndpointOptions::max_region_bytes"));
  }
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (size_bytes + page - 1) / page * page;
  const bool shared = sharing == Sharing::kReadable;
  const int fd = shared ? CreateMemory(mapped) : -1;
  void* memory = MAP_FAILED;
  if (!shared || fd >= 0) {
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                  shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return Err(ResourceExhausted("the system refused " + std::to_string(size_bytes) +
                                 " bytes of I/O memory (" + std::strerror(error) + ") with " +
                                 std::to_string(*in_use_bytes) +
                                 " in use: free memory or lower the number of chunks in flight"));
  }
  // Ours is the only mapping that may write. Kernels before 5.1 do not know the seal: there a peer
  // that breaks the protocol could write, too.
  if (shared) (void)fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  // Both are best effort. Huge pages make large copies miss the TLB less; pages that exist now do
  // not fault on the data path.
  if (mapped >= kHugePageBytes) (void)madvise(memory, mapped, MADV_HUGEPAGE);
  (void)madvise(memory, mapped, MADV_POPULATE_WRITE);
  return std::unique_ptr<MappedRegion>(
      new MappedRegion({static_cast<std::byte*>(memory), size_bytes}, mapped, fd, in_use_bytes));
}

}  // namespace slackline::transport
