#include "common/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <string>

#include "common/mutex.h"
#include "common/time_source.h"

namespace slackline {
namespace {

std::string ThisThreadName() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

TEST(Thread, CarriesItsNameCutToTheKernelsLimit) {
  std::string name;
  Thread("shard-3", [&] { name = ThisThreadName(); }).Join();
  EXPECT_EQ(name, "shard-3");
  Thread("a-name-of-more-than-15-bytes", [&] { name = ThisThreadName(); }).Join();
  EXPECT_EQ(name, "a-name-of-more-");
}

TEST(Thread, DestructionAndReplacementJoin) {
  std::atomic<int> finished{0};
  {
    Thread thread("first", [&] { ++finished; });
    thread = Thread("second", [&] { ++finished; });
    EXPECT_GE(finished.load(), 1) << "the replaced thread was not joined";
  }
  EXPECT_EQ(finished.load(), 2);
}

TEST(Thread, JoinIsHarmlessWhenThereIsNothingToJoin) {
  Thread none;
  EXPECT_FALSE(none.joinable());
  none.Join();
  Thread thread("t", [] {});
  EXPECT_TRUE(thread.joinable());
  thread.Join();
  thread.Join();
  EXPECT_FALSE(thread.joinable());
}

// A number that two threads hand to each other.
class Turn {
 public:
  void WaitFor(int value) {
    MutexLock lock(mutex_);
    while (value_ != value) changed_.Wait(lock);
  }
  void Set(int value) {
    MutexLock lock(mutex_);
    value_ = value;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int value_ SLACKLINE_GUARDED_BY(mutex_) = 0;
};

TEST(Mutex, CondVarHandsOver) {
  Turn turn;
  constexpr int kRounds = 1000;
  Thread other("other", [&] {
    for (int i = 0; i < kRounds; ++i) {
      turn.WaitFor(2 * i + 1);
      turn.Set(2 * i + 2);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    turn.WaitFor(2 * i);
    turn.Set(2 * i + 1);
  }
  turn.WaitFor(2 * kRounds);
}

TEST(CondVar, TimedWaitEndsByItselfAfterItsTime) {
  Mutex mutex;
  CondVar never_notified;
  const SteadyTimeSource time;
  constexpr TimeNs kWaitNs = 20 * kNsPerMs;
  const TimeNs begin = time.NowNs();
  MutexLock lock(mutex);
  while (never_notified.WaitFor(lock, kWaitNs)) {  // True is a spurious return.
  }
  EXPECT_GE(time.NowNs() - begin, kWaitNs);
}

TEST(CondVar, EndlessTimeoutDoesNotOverflowIntoThePast) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  Thread other;
  MutexLock lock(mutex);
  // Started with the lock held: it cannot notify before the wait below.
  other = Thread("other", [&] {
    MutexLock inner(mutex);
    ready = true;
    changed.NotifyOne();
  });
  while (!ready) {
    ASSERT_TRUE(changed.WaitFor(lock, kNever)) << "timed out at once";
  }
}

}  // namespace
}  // namespace slackline
