// SIGINT and SIGTERM as calls on a thread that may take locks.
//
// The first signal calls `on_stop`; a second one, or `grace_ns` without the object's destruction,
// calls `on_give_up`. Handlers, not a blocked mask: libraries start threads before main that
// inherit no mask of ours. Threading: construct and destroy on one thread, one object at a time.
// The callbacks run on the object's own thread. Ownership: what the callbacks refer to must outlive
// the object; the destructor joins and gives the signals their default actions back.
#pragma once

#include <functional>
#include <memory>

#include "common/file.h"
#include "common/status.h"
#include "common/thread.h"
#include "common/types.h"

namespace slackline::worker {

class StopSignals {
 public:
  static Result<std::unique_ptr<StopSignals>> Create(TimeNs grace_ns, std::function<void()> on_stop,
                                                     std::function<void()> on_give_up);
  ~StopSignals();

 private:
  StopSignals(TimeNs grace_ns, std::function<void()> on_stop, std::function<void()> on_give_up);
  void Loop();

  const TimeNs grace_ns_;
  const std::function<void()> on_stop_;
  const std::function<void()> on_give_up_;
  Fd signals_;  // An eventfd: signals, as the handler counts them.
  Fd end_;      // An eventfd: the destructor's word to the thread.
  Thread thread_;
};

}  // namespace slackline::worker
