#include "common/counting_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "common/thread.h"

namespace slackline {
namespace {

// Calls the operators by name: a new-expression may be optimised away with its delete.
void AllocateAndFree(size_t bytes) { ::operator delete(::operator new(bytes)); }

TEST(CountingAllocator, CountsTheCallingThreadExactly) {
  const AllocationCounts before = ThreadAllocations();
  AllocateAndFree(100);
  AllocateAndFree(28);
  const AllocationCounts after = ThreadAllocations();
  EXPECT_EQ(after.allocations - before.allocations, 2u);
  EXPECT_EQ(after.frees - before.frees, 2u);
  EXPECT_EQ(after.bytes - before.bytes, 128u);
}

TEST(CountingAllocator, SeesContainersAndEveryFormOfNew) {
  const AllocationCounts before = ThreadAllocations();
  std::vector<int> values;
  values.reserve(10);
  ::operator delete[](::operator new[](1));
  ::operator delete(::operator new(1, std::nothrow), std::nothrow);
  ::operator delete[](::operator new[](1, std::nothrow), std::nothrow);
  constexpr std::align_val_t kAlignment{256};
  void* aligned = ::operator new(3, kAlignment);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 256, 0u);
  ::operator delete(aligned, kAlignment);
  ::operator delete[](::operator new[](3, kAlignment), kAlignment);
  const AllocationCounts after = ThreadAllocations();
  EXPECT_EQ(after.allocations - before.allocations, 6u);
  EXPECT_EQ(after.frees - before.frees, 5u) << "the vector still holds its memory";
}

TEST(CountingAllocator, ThreadsHaveTheirOwnCountsTheProcessHasAll) {
  const AllocationCounts process_before = ProcessAllocations();
  AllocationCounts in_thread;
  uint64_t at_start = 0;
  Thread("allocates", [&] {
    at_start = ThreadAllocations().allocations;
    for (int i = 0; i < 50; ++i) AllocateAndFree(8);
    in_thread = ThreadAllocations();
  }).Join();
  EXPECT_EQ(in_thread.allocations - at_start, 50u);
  EXPECT_GE(ProcessAllocations().allocations - process_before.allocations, 50u);
}

TEST(CountingAllocator, NothingAllocatedIsZero) {
  const AllocationCounts before = ThreadAllocations();
  int sum = 0;
  for (int i = 0; i < 1000; ++i) sum += i;
  const AllocationCounts after = ThreadAllocations();
  EXPECT_EQ(sum, 499'500);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.frees, before.frees);
}

}  // namespace
}  // namespace slackline
