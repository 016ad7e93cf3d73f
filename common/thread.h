// A named thread that is joined, always.
//
// The name shows in top -H, gdb and perf. Destruction joins, so the function must have been told to
// end (by its owner's Stop, a closed queue, ...) before the Thread goes; nothing is ever detached.
// Threading: an object belongs to one thread at a time. Ownership: what the function refers to must
// outlive the Thread, so declare the Thread after it.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace slackline {

class Thread {
 public:
  // Not running; joinable() is false.
  Thread() = default;
  // Starts at once. The kernel keeps the first 15 bytes of the name.
  Thread(std::string name, std::function<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&&) noexcept = default;
  // Joins the thread that is replaced.
  Thread& operator=(Thread&& other) noexcept;

  // Waits for the function to return. Harmless when there is nothing to join.
  void Join();
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

// Names the calling thread (a program's main thread, a callback's).
void SetThisThreadName(const std::string& name);

}  // namespace slackline
