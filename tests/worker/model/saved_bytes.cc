#include "tests/worker/model/saved_bytes.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace slackline::worker {
namespace {

class Counter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, int64_t, int64_t, c10::Device) override {
    kept += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t kept = 0;
};

}  // namespace

int64_t BytesKeptBy(const std::function<void()>& work) {
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  work();
  return counter->kept;
}

}  // namespace slackline::worker
