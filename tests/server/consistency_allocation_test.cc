// After a view is installed the state machine does not allocate. A program of its own, since the
// counting allocator replaces operator new.
#include <gtest/gtest.h>

#include <vector>

#include "common/counting_allocator.h"
#include "server/consistency/consistency.h"

namespace slackline::server {
namespace {

constexpr uint32_t kChunks = 8;
constexpr WorkerId kWorkers = 16;

void ExpectNoAllocation(ConsistencyMode mode, Clock staleness) {
  auto machine =
      Consistency::Create({.mode = mode, .staleness = staleness, .chunk_count = kChunks});
  ASSERT_TRUE(machine.has_value());
  View view{1, {}};
  for (WorkerId w = 0; w < kWorkers; ++w) view.members.push_back({w, 1, 0});
  std::vector<Decision> decisions;
  decisions.reserve(kWorkers + 1);
  ASSERT_TRUE(machine->OnView(view, &decisions).ok());

  const uint64_t before = ThreadAllocations().allocations;
  uint64_t ticket = 0;
  size_t answered = 0;
  for (Clock clock = 0; clock < 50; ++clock) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      for (WorkerId w = 0; w < kWorkers; ++w) {
        decisions.clear();
        (void)machine->OnPush({w, 1, clock, chunk}, 1, false, &decisions);
        (void)machine->OnPush({w, 1, clock, chunk}, 1, false, &decisions);
        answered += decisions.size();
        decisions.clear();
        machine->OnPull({w, 1, clock + 1, chunk}, ++ticket, &decisions);
        answered += decisions.size();
      }
    }
  }
  EXPECT_EQ(ThreadAllocations().allocations - before, 0u);
  EXPECT_GE(answered, 50u * kChunks * kWorkers) << "the pushes above were not worked on";
}

TEST(ConsistencyAllocationTest, CountsAllocationsAtAll) {
  const uint64_t before = ThreadAllocations().allocations;
  std::vector<int> some(100);
  EXPECT_GT(ThreadAllocations().allocations - before, 0u) << some.size();
}

TEST(ConsistencyAllocationTest, NoneAfterTheViewIsInstalled) {
  ExpectNoAllocation(ConsistencyMode::kBsp, 0);
  ExpectNoAllocation(ConsistencyMode::kSsp, 3);
  ExpectNoAllocation(ConsistencyMode::kAsp, 0);
}

}  // namespace
}  // namespace slackline::server
