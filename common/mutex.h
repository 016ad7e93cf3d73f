// A mutex, its lock and its condition variable, annotated for clang's -Wthread-safety: a member
// marked SLACKLINE_GUARDED_BY(mutex_) that is touched without the lock does not compile there.
// GCC sees plain std types. There is no manual lock() outside these classes.
// Threading: that is what they are for.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "common/thread_annotations.h"
#include "common/types.h"

namespace slackline {

class SLACKLINE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex from construction to destruction.
class SLACKLINE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLACKLINE_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() SLACKLINE_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Waits are written as a loop over the condition in the function that holds the lock, so that the
// analysis sees the guarded reads:
//   MutexLock lock(mutex_);
//   while (!ready_) changed_.Wait(lock);
class CondVar {
 public:
  // Returns after a notification, or spuriously.
  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // Also after `timeout_ns`; false then. Loops that call it compute what is left of their deadline.
  bool WaitFor(MutexLock& lock, TimeNs timeout_ns) {
    // The deadline is now + timeout, which kNever would overflow.
    const std::chrono::nanoseconds timeout(std::min(timeout_ns, kLongestWaitNs));
    return condition_.wait_for(lock.lock_, timeout) == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  static constexpr TimeNs kLongestWaitNs = TimeNs{86'400} * 365 * 1'000'000'000;  // A year.
  std::condition_variable condition_;
};

}  // namespace slackline
