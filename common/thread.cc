#include "common/thread.h"

#include <pthread.h>

#include <utility>

namespace slackline {

Thread::Thread(std::string name, std::function<void()> body)
    : thread_([name = std::move(name), body = std::move(body)] {
        SetThisThreadName(name);
        body();
      }) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    thread_ = std::move(other.thread_);
  }
  return *this;
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

void SetThisThreadName(const std::string& name) {
  constexpr size_t kKernelLimit = 15;  // TASK_COMM_LEN less the terminator; longer is refused.
  pthread_setname_np(pthread_self(), name.substr(0, kKernelLimit).c_str());
}

}  // namespace slackline
