#include "worker/trainer/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "common/mutex.h"
#include "common/time_source.h"

namespace slackline::worker {
namespace {

// Counts the calls, and lets the test wait for them.
class Calls {
 public:
  void Stop() { Add(stops_); }
  void GiveUp() { Add(give_ups_); }
  void Wait(int stops, int give_ups) {
    MutexLock lock(mutex_);
    while (stops_ < stops || give_ups_ < give_ups) changed_.Wait(lock);
  }
  std::pair<int, int> counts() {
    MutexLock lock(mutex_);
    return {stops_, give_ups_};
  }

 private:
  void Add(int& count) {
    MutexLock lock(mutex_);
    ++count;
    changed_.NotifyAll();
  }
  Mutex mutex_;
  CondVar changed_;
  int stops_ = 0, give_ups_ = 0;
};

std::unique_ptr<StopSignals> Listen(Calls& calls, TimeNs grace_ns) {
  return StopSignals::Create(
             grace_ns, [&calls] { calls.Stop(); }, [&calls] { calls.GiveUp(); })
      .value();
}

TEST(StopSignalsTest, TheFirstSignalStopsTheSecondGivesUp) {
  Calls calls;
  {
    const auto signals = Listen(calls, 3600 * kNsPerSecond);
    // To the process: any thread may get it, also one that was there before.
    ASSERT_EQ(kill(getpid(), SIGTERM), 0);
    calls.Wait(1, 0);
    EXPECT_EQ(calls.counts(), std::pair(1, 0));
    ASSERT_EQ(kill(getpid(), SIGINT), 0);
    calls.Wait(1, 1);
  }
  EXPECT_EQ(calls.counts(), std::pair(1, 1));
}

TEST(StopSignalsTest, GivesUpWhenTheGraceIsOver) {
  Calls calls;
  const auto signals = Listen(calls, kNsPerMs);
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);
  calls.Wait(1, 1);
}

TEST(StopSignalsTest, NoSignalNoCall) {
  Calls calls;
  Listen(calls, kNsPerMs).reset();
  EXPECT_EQ(calls.counts(), std::pair(0, 0));
}

}  // namespace
}  // namespace slackline::worker
