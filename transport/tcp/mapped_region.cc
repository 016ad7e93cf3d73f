#include "transport/tcp/mapped_region.h"

#include <glog/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace slackline::transport {
namespace {

constexpr size_t kHugePageBytes = 2u << 20;

}  // namespace

MappedRegion::MappedRegion(MutableBytes bytes, size_t mapped_bytes, uint64_t* in_use_bytes)
    : Region(bytes), mapped_bytes_(mapped_bytes), in_use_bytes_(in_use_bytes) {
  *in_use_bytes_ += mapped_bytes_;
}

MappedRegion::~MappedRegion() {
  *in_use_bytes_ -= mapped_bytes_;
  PCHECK(munmap(bytes_.data(), mapped_bytes_) == 0) << "a region that we mapped";
}

Result<std::unique_ptr<Region>> MappedRegion::Create(size_t size_bytes, uint64_t limit_bytes,
                                                     uint64_t* in_use_bytes) {
  if (size_bytes == 0) return Err(InvalidArgument("a region of 0 bytes was asked for"));
  if (size_bytes > limit_bytes || *in_use_bytes > limit_bytes - size_bytes) {
    return Err(ResourceExhausted(
        std::to_string(size_bytes) + " bytes of I/O memory were asked for with " +
        std::to_string(*in_use_bytes) + " in use, and the endpoint's limit is " +
        std::to_string(limit_bytes) + ": raise EndpointOptions::max_region_bytes"));
  }
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (size_bytes + page - 1) / page * page;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Err(ResourceExhausted("the system refused " + std::to_string(size_bytes) +
                                 " bytes of I/O memory (" + std::strerror(errno) + ") with " +
                                 std::to_string(*in_use_bytes) +
                                 " in use: free memory or lower the number of chunks in flight"));
  }
  // Both are best effort. Huge pages make large copies in and out of the kernel miss the TLB less;
  // pages that exist now do not fault inside the first system call on them.
  if (mapped >= kHugePageBytes) (void)madvise(memory, mapped, MADV_HUGEPAGE);
  (void)madvise(memory, mapped, MADV_POPULATE_WRITE);
  return std::unique_ptr<Region>(
      new MappedRegion({static_cast<std::byte*>(memory), size_bytes}, mapped, in_use_bytes));
}

}  // namespace slackline::transport
