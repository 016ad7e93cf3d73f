// Counts what operator new and delete do: the proof that a path does not allocate.
//
// Linking slackline_counting_allocator replaces the global operators of the whole program; only
// tests and benchmarks do. malloc called by C libraries is not seen.
// Threading: thread-safe; the counts of a thread are its own.
#pragma once

#include <cstdint>

namespace slackline {

struct AllocationCounts {
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t bytes = 0;  // Asked for by the allocations.
};

// Of the calling thread, since it started.
AllocationCounts ThreadAllocations();
// Of all threads, since the program started.
AllocationCounts ProcessAllocations();

}  // namespace slackline
