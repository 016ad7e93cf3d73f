#include "worker/trainer/stop_signals.h"

#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

#include "common/time_source.h"

namespace slackline::worker {
namespace {

// Where the handler counts; -1: nowhere.
std::atomic<int> signal_eventfd{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may only use lock-free atomics");

extern "C" void OnSignal(int) {
  const int saved = errno;
  (void)::eventfd_write(signal_eventfd.load(), 1);
  errno = saved;
}

void SetAction(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals(TimeNs grace_ns, std::function<void()> on_stop,
                         std::function<void()> on_give_up)
    : grace_ns_(grace_ns), on_stop_(std::move(on_stop)), on_give_up_(std::move(on_give_up)) {}

Result<std::unique_ptr<StopSignals>> StopSignals::Create(TimeNs grace_ns,
                                                         std::function<void()> on_stop,
                                                         std::function<void()> on_give_up) {
  std::unique_ptr<StopSignals> stop(
      new StopSignals(grace_ns, std::move(on_stop), std::move(on_give_up)));
  stop->signals_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  stop->end_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop->signals_.valid() || !stop->end_.valid()) {
    return Err(ErrnoStatus(errno, "cannot listen for signals"));
  }
  CHECK_EQ(signal_eventfd.exchange(stop->signals_.get()), -1) << "one at a time";
  SetAction(OnSignal);
  stop->thread_ = Thread("signals", [raw = stop.get()] { raw->Loop(); });
  return stop;
}

StopSignals::~StopSignals() {
  if (signals_.valid()) {
    SetAction(SIG_DFL);
    signal_eventfd.store(-1);
  }
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
    eventfd_t signals = 0;
    if (ready > 0 && ::eventfd_read(signals_.get(), &signals) != 0) continue;
    const bool first = timeout_ms < 0;
    timeout_ms = static_cast<int>(grace_ns_ / kNsPerMs);
    if (first) on_stop_();
    if (!first || signals > 1) {
      on_give_up_();
      return;
    }
  }
}

}  // namespace slackline::worker
