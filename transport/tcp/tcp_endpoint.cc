#include "transport/tcp/tcp_endpoint.h"

#include <fcntl.h>
#include <glog/logging.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>

#include "transport/mapped_region.h"

namespace slackline::transport {
namespace {

// Where unwanted payloads are read to, in pieces of this size.
constexpr size_t kDrainBytes = 64u << 10;
// While channels are busy the reactor is asked for news of the others this often.
constexpr TimeNs kBusyReactorIntervalNs = 100'000;
// Handlers that one visit to the reactor runs: all that can be pending for every channel at once.
constexpr size_t kMaxReactorHandlers = 3 * kMaxTcpChannels;

}  // namespace

Result<std::unique_ptr<Endpoint>> TcpEndpoint::Create(const TcpOptions& options) {
  if (options.pass_bytes == 0) return Err(InvalidArgument("pass_bytes must be above 0"));
  return std::unique_ptr<Endpoint>(new TcpEndpoint(options));
}

TcpEndpoint::TcpEndpoint(const TcpOptions& options)
    : options_(options),
      now_ns_(time_.NowNs()),
      drain_(kDrainBytes),
      // One thread runs it: Asio may leave out the wake-ups that several would need.
      io_(1),
      work_(io_.get_executor()),
      resolver_(io_),
      send_pacer_(options.link_gbps),
      receive_pacer_(options.link_gbps) {
  channels_.reserve(kMaxTcpChannels);
  graveyard_.reserve(kMaxTcpChannels);
  hot_.reserve(2 * kMaxTcpChannels);
}

TcpEndpoint::~TcpEndpoint() {
  resolver_.cancel();
  while (!channels_.empty()) channels_.back()->Shut();
  for (auto& listener : listeners_) {
    boost::system::error_code ignored;
    listener->acceptor.close(ignored);
  }
  for (auto& watch : watches_) {
    boost::system::error_code ignored;
    watch->descriptor.close(ignored);
  }
  // Every wait was cancelled above: its handler is ready and only lowers a counter, since channels
  // are closed. Run, they leave their slots, which die with channels and listeners.
  io_.poll();
  for (const auto& channel : graveyard_) CHECK_EQ(channel->pending_waits, 0u);
  for (const auto& listener : listeners_) CHECK(!listener->waiting);
}

size_t TcpEndpoint::Poll(TimeNs max_wait_ns) {
  CHECK(!polling_) << "Poll is not re-entrant";
  CHECK(handler_ != nullptr) << "set_handler comes first";
  if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
  CHECK(OnOwnerThread()) << "an endpoint is polled by one thread";
  polling_ = true;
  events_ = 0;
  now_ns_ = time_.NowNs();

  // An idle endpoint that may wait looks at the reactor once, below.
  ResumePaced();
  const bool visit =
      hot_.empty() ? max_wait_ns <= 0 : now_ns_ - reactor_visit_ns_ >= kBusyReactorIntervalNs;
  if (visit) RunReactor(0);
  ServiceHot();
  if (events_ == 0 && max_wait_ns > 0) {
    RunReactor(max_wait_ns);
    ResumePaced();
    ServiceHot();
  }
  if (now_ns_ >= next_deadline_ns_) SweepDeadlines();
  if (!graveyard_.empty()) Reap();
  woken_ = false;
  polling_ = false;
  return events_;
}

void TcpEndpoint::RunReactor(TimeNs max_wait_ns) {
  const TimeNs wait_ns =
      std::min({max_wait_ns, next_deadline_ns_ - now_ns_, paced_until_ns_ - now_ns_});
  if (wait_ns > 0 && !woken_) {
    ++io_stats_.sleeps;
    RearmWatches();
    (void)io_.run_one_for(std::chrono::nanoseconds(wait_ns));
    now_ns_ = time_.NowNs();
    // Other handlers that became ready run at the next visit; looking for them now would cost a
    // system call, and mostly there are none.
    return;
  }
  reactor_visit_ns_ = now_ns_;
  size_t ran = 0;
  while (ran < kMaxReactorHandlers && io_.poll_one() > 0) ++ran;
}

Status TcpEndpoint::Watch(int fd) {
  // Its own, since Asio closes it.
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return ErrnoStatus(errno, "duplicating a descriptor to watch");
  watches_.push_back(std::make_unique<WatchedFd>(io_));
  boost::system::error_code error;
  watches_.back()->descriptor.assign(own, error);
  return error ? ErrnoStatus(error.value(), "watching a descriptor") : OkStatus();
}

void TcpEndpoint::RearmWatches() {
  for (auto& watch : watches_) {
    if (watch->waiting) continue;
    watch->waiting = true;
    watch->descriptor.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        InSlot(watch->slot, [watch = watch.get()](const boost::system::error_code&) {
          watch->waiting = false;
        }));
  }
}

void TcpEndpoint::ServiceHot() {
  // Until something was done: then the owner has its turn. Each turn without success leaves
  // channels waiting for the reactor, so that the loop ends.
  while (!hot_.empty()) {
    const size_t before = events_;
    // Channels that callbacks activate stand behind `count` and have their turn in the next pass.
    const size_t count = hot_.size();
    for (size_t i = 0; i < count; ++i) {
      if (hot_[i]->open()) hot_[i]->Service();
    }
    std::erase_if(hot_, [](TcpChannel* channel) {
      channel->listed = channel->hot();
      return !channel->listed;
    });
    if (events_ != before) return;
  }
}

void TcpEndpoint::SweepDeadlines() {
  next_deadline_ns_ = kNever;
  for (const auto& listener : listeners_) {
    if (!listener->waiting) StartAccepting(*listener);
  }
  // Downwards: failing a channel moves the last one into its place.
  for (size_t i = channels_.size(); i-- > 0;) {
    if (i >= channels_.size()) continue;  // A callback closed others.
    TcpChannel& channel = *channels_[i];
    const TimeNs deadline_ns = channel.DeadlineNs();
    if (deadline_ns <= now_ns_) {
      channel.Fail(channel.DeadlineStatus());
    } else {
      NoteDeadline(deadline_ns);
    }
  }
}

void TcpEndpoint::Reap() {
  // Closing a socket made its waits' handlers ready.
  size_t ran = 0;
  while (ran < kMaxReactorHandlers && io_.poll_one() > 0) ++ran;
  std::erase_if(graveyard_, [](const std::unique_ptr<TcpChannel>& channel) {
    return channel->pending_waits == 0 && !channel->listed;
  });
}

bool TcpEndpoint::OnOwnerThread() const {
  // Before the first Poll the endpoint may be handed to its thread.
  return owner_ == std::thread::id() || owner_ == std::this_thread::get_id();
}

void TcpEndpoint::Wake() {
  if (wake_pending_.exchange(true)) return;
  boost::asio::post(io_, InSlot(wake_slot_, [this] {
                      // Cleared after Asio gave the slot back and before this Poll looks for work:
                      // a Wake from now on is posted anew.
                      wake_pending_.store(false);
                      woken_ = true;
                    }));
}

Result<std::unique_ptr<Region>> TcpEndpoint::Allocate(size_t size_bytes) {
  return MappedRegion::Create(size_bytes, options_.max_region_bytes, &region_bytes_);
}

void TcpEndpoint::Activate(TcpChannel& channel) {
  if (channel.listed || !channel.hot()) return;
  channel.listed = true;
  hot_.push_back(&channel);
}

void TcpEndpoint::Bury(TcpChannel& channel) {
  const size_t slot = channel.slot;
  CHECK(channels_[slot].get() == &channel);
  graveyard_.push_back(std::move(channels_[slot]));
  if (slot + 1 != channels_.size()) {
    channels_[slot] = std::move(channels_.back());
    channels_[slot]->slot = slot;
  }
  channels_.pop_back();
}

void TcpEndpoint::NoteDeadline(TimeNs deadline_ns) {
  next_deadline_ns_ = std::min(next_deadline_ns_, deadline_ns);
}

void TcpEndpoint::NotePaced(const Pacer& pacer) {
  ++io_stats_.paced_waits;
  paced_until_ns_ = std::min(paced_until_ns_, pacer.ReadyAt());
}

void TcpEndpoint::ResumePaced() {
  if (now_ns_ < paced_until_ns_) return;
  paced_until_ns_ = kNever;
  for (const auto& channel : channels_) {
    channel->read_paced = channel->write_paced = false;
    Activate(*channel);
  }
}

void TcpEndpoint::LogBadPeer(std::string_view peer, const Status& status) {
  uint64_t suppressed = 0;
  const std::string_view host = peer.substr(0, peer.rfind(':'));
  if (!peer_log_.ShouldLog(host, now_ns_, &suppressed)) return;
  LOG(WARNING) << "closed a connection: " << status << " (" << suppressed
               << " more from this peer since the last report)";
}

}  // namespace slackline::transport
