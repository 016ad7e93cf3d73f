#include "transport/shm/shm_endpoint.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace slackline::transport {
namespace {

// While channels are busy, sockets are looked at this often: a death is noticed that late.
constexpr TimeNs kSocketVisitNs = 100'000;
constexpr size_t kMaxSocketEvents = 64;
// Turns of a spin between looks at the clock.
constexpr int kSpinTurns = 32;

}  // namespace

// Memory that peers can be given to read; its end is told to those who were.
class ShmEndpoint::SharedRegion final : public Region {
 public:
  SharedRegion(ShmEndpoint& endpoint, std::unique_ptr<MappedRegion> memory)
      : Region(memory->bytes()), endpoint_(endpoint), memory_(std::move(memory)) {}
  ~SharedRegion() override { endpoint_.ForgetRegion(*memory_); }

 private:
  ShmEndpoint& endpoint_;
  std::unique_ptr<MappedRegion> memory_;
};

Result<std::unique_ptr<Endpoint>> ShmEndpoint::Create(const ShmOptions& options) {
  if (options.pass_bytes == 0) return Err(InvalidArgument("pass_bytes must be above 0"));
  std::unique_ptr<ShmEndpoint> endpoint(new ShmEndpoint(options));
  SLACKLINE_RETURN_ERR_IF_ERROR(endpoint->Open());
  return endpoint;
}

ShmEndpoint::ShmEndpoint(const ShmOptions& options)
    : options_(options),
      spinner_(options.poll_mode),
      regions_(kMaxShmRegions),
      last_region_(regions_.data()),
      generations_(kMaxShmRegions) {
  channels_.reserve(kMaxShmChannels);
  graveyard_.reserve(kMaxShmChannels);
}

Status ShmEndpoint::Open() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid()) return ErrnoStatus(errno, "an endpoint's descriptors");
  return WatchSocket(wake_, wake_target_);
}

ShmEndpoint::~ShmEndpoint() {
  while (!channels_.empty()) channels_.back()->Shut();
}

// ---- Polling ----

size_t ShmEndpoint::Poll(TimeNs max_wait_ns) {
  CHECK(!polling_) << "Poll is not re-entrant";
  CHECK(handler_ != nullptr) << "set_handler comes first";
  if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
  CHECK(owner_ == std::this_thread::get_id()) << "an endpoint is polled by one thread";
  polling_ = true;
  events_ = 0;
  now_ns_ = time_.NowNs();
  // Armed: somebody waited for the sockets elsewhere.
  const bool visit = armed_ || wake_pending_.load(std::memory_order_relaxed) ||
                     now_ns_ - visit_ns_ >= kSocketVisitNs;
  Disarm();
  if (visit) VisitSockets(0);
  ServiceChannels();
  if (events_ == 0 && max_wait_ns > 0) {
    Spin(spinner_.BudgetNs(max_wait_ns));
    if (events_ == 0 && !Woken()) Sleep(max_wait_ns);
  }
  if (now_ns_ >= next_deadline_ns_) SweepDeadlines();
  graveyard_.clear();
  woken_ = false;
  polling_ = false;
  return events_;
}

void ShmEndpoint::ServiceChannels() {
  // By index: callbacks close channels, whose places others take, and open new ones.
  for (size_t i = 0; i < channels_.size(); ++i) channels_[i]->Service();
  for (const auto& channel : channels_) channel->RingPeer();
}

void ShmEndpoint::Spin(TimeNs budget_ns) {
  if (budget_ns <= 0) return;
  const TimeNs end_ns = now_ns_ + std::min(budget_ns, next_deadline_ns_ - now_ns_);
  while (events_ == 0 && now_ns_ < end_ns && !Woken()) {
    for (int turn = 0; turn < kSpinTurns && events_ == 0; ++turn) {
      CpuRelax();
      ServiceChannels();
    }
    now_ns_ = time_.NowNs();
    if (events_ == 0 && now_ns_ - visit_ns_ >= kSocketVisitNs) VisitSockets(0);
  }
  spinner_.Report(events_ > 0);
}

void ShmEndpoint::Sleep(TimeNs max_wait_ns) {
  if (ArmWait()) {
    ++sleeps_;
    VisitSockets(std::clamp<TimeNs>(next_deadline_ns_ - now_ns_, 0, max_wait_ns));
    now_ns_ = time_.NowNs();
  }
  Disarm();
  ServiceChannels();
}

bool ShmEndpoint::ArmWait() {
  armed_ = true;
  bool idle = true;
  for (const auto& channel : channels_) idle = channel->Arm() && idle;
  return idle;
}

void ShmEndpoint::Disarm() {
  if (!armed_) return;
  armed_ = false;
  for (const auto& channel : channels_) channel->Disarm();
}

void ShmEndpoint::VisitSockets(TimeNs max_wait_ns) {
  visit_ns_ = now_ns_;
  std::array<epoll_event, kMaxSocketEvents> ready;
  const TimeNs wait_ms = std::min<TimeNs>((max_wait_ns + kNsPerMs - 1) / kNsPerMs, INT32_MAX);
  const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()),
                               static_cast<int>(wait_ms));
  for (int i = 0; i < count; ++i) {
    auto* target = static_cast<ShmPollable*>(ready[static_cast<size_t>(i)].data.ptr);
    switch (target->kind) {
      case ShmPollable::Kind::kWake: {
        uint64_t ignored = 0;
        (void)!read(wake_.get(), &ignored, sizeof ignored);
        // After the read: a Wake() from now on writes anew. One that came before found the flag
        // set and wrote nothing, so that this Poll must return for it.
        wake_pending_.exchange(false);
        woken_ = true;
        break;
      }
      case ShmPollable::Kind::kListener:
        Accept(*static_cast<Listener*>(target));
        break;
      case ShmPollable::Kind::kChannel:
        // A channel that an earlier one's callback closed is in the graveyard, and inert.
        static_cast<ShmChannel*>(target)->OnSocket(
            (ready[static_cast<size_t>(i)].events & (EPOLLHUP | EPOLLERR)) != 0);
        break;
    }
  }
}

void ShmEndpoint::SweepDeadlines() {
  next_deadline_ns_ = kNever;
  for (const auto& listener : listeners_) {
    if (listener->retry_ns > now_ns_) {
      NoteDeadline(listener->retry_ns);
    } else {
      listener->retry_ns = kNever;
      if (!WatchSocket(listener->socket, *listener).ok()) {
        listener->retry_ns = now_ns_ + kNsPerSecond;
        NoteDeadline(listener->retry_ns);
      }
    }
  }
  // Downwards: failing a channel moves the last one into its place.
  for (size_t i = channels_.size(); i-- > 0;) {
    if (i >= channels_.size()) continue;  // A callback closed others.
    ShmChannel& channel = *channels_[i];
    if (channel.DeadlineNs() <= now_ns_) {
      channel.OnDeadline(now_ns_);
    }
  }
  for (const auto& channel : channels_) NoteDeadline(channel->DeadlineNs());
}

void ShmEndpoint::Wake() {
  if (wake_pending_.exchange(true)) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

// ---- Memory ----

Result<std::unique_ptr<Region>> ShmEndpoint::Allocate(size_t size_bytes) {
  const auto place = std::ranges::find(regions_, nullptr, &OwnRegion::memory);
  if (place == regions_.end()) {
    return Err(ResourceExhausted("an endpoint has at most " + std::to_string(kMaxShmRegions) +
                                 " regions of shared memory: allocate fewer, larger ones"));
  }
  SLACKLINE_ASSIGN_OR_RETURN(
      std::unique_ptr<MappedRegion> memory,
      MappedRegion::Create(size_bytes, options_.max_region_bytes, &region_bytes_,
                           MappedRegion::Sharing::kReadable));
  const auto index = static_cast<size_t>(place - regions_.begin());
  // Generations count from 1, so that no id is kNoRegion.
  *place = {.id = ++generations_[index] * kMaxShmRegions + index, .memory = memory.get()};
  return std::make_unique<SharedRegion>(*this, std::move(memory));
}

const ShmEndpoint::OwnRegion* ShmEndpoint::FindRegion(ConstBytes bytes) {
  const auto holds = [&](const OwnRegion& region) {
    if (region.memory == nullptr) return false;
    const MutableBytes all = region.memory->bytes();
    return bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size();
  };
  if (holds(*last_region_)) return last_region_;
  const auto found = std::ranges::find_if(regions_, holds);
  if (found == regions_.end()) return nullptr;
  last_region_ = &*found;
  return last_region_;
}

void ShmEndpoint::ForgetRegion(const MappedRegion& memory) {
  const auto region = std::ranges::find(regions_, &memory, &OwnRegion::memory);
  for (const auto& channel : channels_) channel->ForgetRegion(region->id);
  *region = {};
}

// ---- For channels ----

void ShmEndpoint::Bury(ShmChannel& channel) {
  const size_t slot = channel.slot;
  CHECK(channels_[slot].get() == &channel);
  graveyard_.push_back(std::move(channels_[slot]));
  if (slot + 1 != channels_.size()) {
    channels_[slot] = std::move(channels_.back());
    channels_[slot]->slot = slot;
  }
  channels_.pop_back();
}

void ShmEndpoint::NoteDeadline(TimeNs deadline_ns) {
  next_deadline_ns_ = std::min(next_deadline_ns_, deadline_ns);
}

void ShmEndpoint::LogBadPeer(std::string_view peer, const Status& status) {
  uint64_t suppressed = 0;
  if (!peer_log_.ShouldLog(peer.substr(0, peer.find(' ')), now_ns_, &suppressed)) return;
  LOG(WARNING) << "closed a connection: " << status << " (" << suppressed
               << " more from this peer since the last report)";
}

}  // namespace slackline::transport
