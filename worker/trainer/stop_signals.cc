#include "worker/trainer/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "common/time_source.h"

namespace slackline::worker {

StopSignals::StopSignals(TimeNs grace_ns, std::function<void()> on_stop,
                         std::function<void()> on_give_up)
    : grace_ns_(grace_ns), on_stop_(std::move(on_stop)), on_give_up_(std::move(on_give_up)) {}

Result<std::unique_ptr<StopSignals>> StopSignals::Create(TimeNs grace_ns,
                                                         std::function<void()> on_stop,
                                                         std::function<void()> on_give_up) {
  std::unique_ptr<StopSignals> stop(
      new StopSignals(grace_ns, std::move(on_stop), std::move(on_give_up)));
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return Err(ErrnoStatus(error, "cannot block SIGINT and SIGTERM"));
  }
  stop->signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  stop->end_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop->signals_.valid() || !stop->end_.valid()) {
    return Err(ErrnoStatus(errno, "cannot listen for signals"));
  }
  stop->thread_ = Thread("signals", [raw = stop.get()] { raw->Loop(); });
  return stop;
}

StopSignals::~StopSignals() {
  if (end_.valid()) (void)::eventfd_write(end_.get(), 1);
  thread_.Join();
}

void StopSignals::Loop() {
  // Forever until the first signal, then for the grace.
  int timeout_ms = -1;
  for (;;) {
    pollfd wanted[2] = {{end_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    const int ready = ::poll(wanted, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || wanted[0].revents != 0) return;
    signalfd_siginfo info;
    if (ready > 0 && ::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    if (timeout_ms < 0) {
      timeout_ms = static_cast<int>(grace_ns_ / kNsPerMs);
      on_stop_();
    } else {
      on_give_up_();
      return;
    }
  }
}

}  // namespace slackline::worker
