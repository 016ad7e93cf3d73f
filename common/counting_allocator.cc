#include "common/counting_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace slackline {
namespace {

thread_local AllocationCounts thread_counts;
// Relaxed throughout: each is a statistic that orders nothing.
std::atomic<uint64_t> process_allocations{0};
std::atomic<uint64_t> process_frees{0};
std::atomic<uint64_t> process_bytes{0};

void* Allocate(size_t bytes, size_t alignment) noexcept {
  ++thread_counts.allocations;
  thread_counts.bytes += bytes;
  process_allocations.fetch_add(1, std::memory_order_relaxed);
  process_bytes.fetch_add(bytes, std::memory_order_relaxed);
  const size_t at_least_one = std::max<size_t>(bytes, 1);
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(at_least_one);
  // aligned_alloc wants a multiple of the alignment.
  return std::aligned_alloc(alignment, (at_least_one + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(size_t bytes, size_t alignment) {
  void* memory = Allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory) noexcept {
  if (memory == nullptr) return;
  ++thread_counts.frees;
  process_frees.fetch_add(1, std::memory_order_relaxed);
  std::free(memory);
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

AllocationCounts ThreadAllocations() { return thread_counts; }

AllocationCounts ProcessAllocations() {
  return {process_allocations.load(std::memory_order_relaxed),
          process_frees.load(std::memory_order_relaxed),
          process_bytes.load(std::memory_order_relaxed)};
}

}  // namespace slackline

// All replaceable forms, so that none of the library's defaults is mixed in.
void* operator new(size_t bytes) { return slackline::AllocateOrThrow(bytes, slackline::kDefault); }
void* operator new[](size_t bytes) {
  return slackline::AllocateOrThrow(bytes, slackline::kDefault);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return slackline::AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return slackline::AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return slackline::Allocate(bytes, slackline::kDefault);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return slackline::Allocate(bytes, slackline::kDefault);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return slackline::Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return slackline::Allocate(bytes, static_cast<size_t>(alignment));
}

void operator delete(void* memory) noexcept { slackline::Free(memory); }
void operator delete[](void* memory) noexcept { slackline::Free(memory); }
void operator delete(void* memory, size_t) noexcept { slackline::Free(memory); }
void operator delete[](void* memory, size_t) noexcept { slackline::Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { slackline::Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { slackline::Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { slackline::Free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { slackline::Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { slackline::Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { slackline::Free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  slackline::Free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  slackline::Free(memory);
}
