#include "transport/rdma/rdma_endpoint.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace slackline::transport {
namespace {

// How long a wait for one of several transports may miss the bootstrap's news.
constexpr TimeNs kIdleBootstrapIntervalNs = 20 * kNsPerMs;
// While completions keep coming the bootstrap is asked for news this often.
constexpr TimeNs kBusyBootstrapIntervalNs = 200'000;
// Completions of a device that are handled before posting has its turn.
constexpr int kMaxCompletionsPerTurn = 256;

}  // namespace

RdmaEndpoint::RdmaEndpoint(const RdmaOptions& options, std::vector<RdmaPort> ports,
                           std::unique_ptr<TcpEndpoint> bootstrap, Fd news)
    : options_(options),
      now_ns_(time_.NowNs()),
      random_(static_cast<uint64_t>(now_ns_)),
      bootstrap_(std::move(bootstrap)),
      news_(std::move(news)),
      spinner_(options.poll) {
  for (RdmaPort& port : ports) {
    const auto index = static_cast<uint32_t>(rails_.size());
    rails_.push_back(std::make_unique<Rail>(std::move(port), index, options));
  }
  channels_.reserve(kMaxRdmaChannels);
  graveyard_.reserve(kMaxRdmaChannels);
  hot_.reserve(2 * kMaxRdmaChannels);
  waiting_for_reads_.reserve(kMaxRdmaChannels);
  bootstrap_->set_handler(this);
}

RdmaEndpoint::~RdmaEndpoint() {
  while (!channels_.empty()) channels_.back()->Shut();
  CHECK(regions_.empty()) << "regions are freed before their endpoint";
}

size_t RdmaEndpoint::Poll(TimeNs max_wait_ns) {
  CHECK(!polling_) << "Poll is not re-entrant";
  CHECK(handler_ != nullptr) << "set_handler comes first";
  if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
  CHECK(OnOwnerThread()) << "an endpoint is polled by one thread";
  polling_ = true;
  events_ = 0;
  now_ns_ = time_.NowNs();
  if (now_ns_ - bootstrap_visit_ns_ >= kBusyBootstrapIntervalNs) VisitBootstrap(0);
  Work();
  if (events_ == 0 && max_wait_ns > 0) Wait(max_wait_ns);
  if (now_ns_ >= next_deadline_ns_) SweepDeadlines();
  std::erase_if(graveyard_, [](const auto& channel) { return !channel->listed; });
  woken_.store(false, std::memory_order_relaxed);
  polling_ = false;
  return events_;
}

void RdmaEndpoint::Work() {
  HandleCompletions();
  ServiceHot();
}

void RdmaEndpoint::HandleCompletions() {
  for (const auto& rail : rails_) {
    if (!rail->started()) continue;
    ibv_wc completion;
    for (int i = 0; i < kMaxCompletionsPerTurn && rail->NextCompletion(&completion); ++i) {
      HandleCompletion(*rail, completion);
    }
    rail->PostRecycled();
  }
}

void RdmaEndpoint::HandleCompletion(Rail& rail, const ibv_wc& completion) {
  const bool ok = completion.status == IBV_WC_SUCCESS;
  if ((completion.wr_id & kReceiveBit) != 0) {
    const auto buffer = static_cast<uint32_t>(completion.wr_id);
    const auto found = by_queue_pair_.find(uint64_t{rail.index()} << 32 | completion.qp_num);
    if (found == by_queue_pair_.end()) {
      rail.Recycle(buffer);
    } else if (ok) {
      found->second->OnReceived(buffer, completion.byte_len);
    } else {
      rail.Recycle(buffer);
      found->second->OnCompletionError(completion);
    }
    return;
  }
  const auto id = static_cast<uint32_t>(completion.wr_id >> 32);
  RdmaChannel* channel = by_id_[id % kMaxRdmaChannels];
  if (channel == nullptr || channel->id() != id) return;  // It is gone.
  if (ok) {
    channel->OnPosted(static_cast<uint32_t>(completion.wr_id));
  } else {
    channel->OnCompletionError(completion);
  }
}

void RdmaEndpoint::ServiceHot() {
  // Channels that callbacks activate stand behind `count` and have their turn in the next pass.
  const size_t count = hot_.size();
  for (size_t i = 0; i < count; ++i) {
    RdmaChannel* channel = hot_[i];
    channel->listed = false;
    if (!channel->closed()) channel->Service();
  }
  hot_.erase(hot_.begin(), hot_.begin() + static_cast<ptrdiff_t>(count));
}

void RdmaEndpoint::VisitBootstrap(TimeNs max_wait_ns) {
  bootstrap_->Poll(max_wait_ns);
  now_ns_ = time_.NowNs();
  bootstrap_visit_ns_ = now_ns_;
}

void RdmaEndpoint::Wait(TimeNs max_wait_ns) {
  const TimeNs until_ns =
      std::min(max_wait_ns > kNever - now_ns_ ? kNever : now_ns_ + max_wait_ns, next_deadline_ns_);
  if (const TimeNs budget_ns = spinner_.BudgetNs(until_ns - now_ns_); budget_ns > 0) {
    Spin(now_ns_ + budget_ns);
    spinner_.Report(events_ > 0);
    if (events_ > 0 || options_.poll == PollMode::kBusy) return;
  }
  Arm();
  // What came before the arming makes no event.
  Work();
  if (events_ > 0 || woken_.load(std::memory_order_acquire)) return;
  VisitBootstrap(std::max<TimeNs>(until_ns - now_ns_, 0));
  Work();
}

void RdmaEndpoint::Arm() {
  for (const auto& rail : rails_) {
    if (!rail->started()) continue;
    rail->TakeEvents();
    rail->Arm();
  }
}

bool RdmaEndpoint::ArmWait() {
  Arm();
  const size_t before = events_;
  HandleCompletions();
  return events_ == before && hot_.empty();
}

TimeNs RdmaEndpoint::NextDeadlineNs() const {
  return std::min(next_deadline_ns_, bootstrap_visit_ns_ + kIdleBootstrapIntervalNs);
}

void RdmaEndpoint::Spin(TimeNs until_ns) {
  while (events_ == 0 && now_ns_ < until_ns && !woken_.load(std::memory_order_acquire)) {
    if (now_ns_ - bootstrap_visit_ns_ >= kBusyBootstrapIntervalNs) VisitBootstrap(0);
    Work();
    CpuRelax();
    now_ns_ = time_.NowNs();
  }
}

void RdmaEndpoint::SweepDeadlines() {
  next_deadline_ns_ = kNever;
  // Downwards: failing a channel moves the last one into its place.
  for (size_t i = channels_.size(); i-- > 0;) {
    if (i >= channels_.size()) continue;  // A callback closed others.
    RdmaChannel& channel = *channels_[i];
    if (channel.DeadlineNs() <= now_ns_) {
      channel.OnDeadline();
    } else {
      next_deadline_ns_ = std::min(next_deadline_ns_, channel.DeadlineNs());
    }
  }
}

bool RdmaEndpoint::OnOwnerThread() const {
  // Before the first Poll the endpoint may be handed to its thread.
  return owner_ == std::thread::id() || owner_ == std::this_thread::get_id();
}

void RdmaEndpoint::Wake() {
  woken_.store(true, std::memory_order_release);
  bootstrap_->Wake();
}

void RdmaEndpoint::Activate(RdmaChannel& channel) {
  if (channel.listed || !channel.hot()) return;
  channel.listed = true;
  hot_.push_back(&channel);
}

void RdmaEndpoint::Bury(RdmaChannel& channel) {
  const size_t slot = channel.slot;
  CHECK(channels_[slot].get() == &channel);
  by_id_[channel.id() % kMaxRdmaChannels] = nullptr;
  std::erase(waiting_for_reads_, &channel);
  graveyard_.push_back(std::move(channels_[slot]));
  if (slot + 1 != channels_.size()) {
    channels_[slot] = std::move(channels_.back());
    channels_[slot]->slot = slot;
  }
  channels_.pop_back();
}

bool RdmaEndpoint::TakeRead(RdmaChannel& channel) {
  if (reads_ < kMaxEndpointReads) {
    ++reads_;
    return true;
  }
  if (!channel.reads_waiting) waiting_for_reads_.push_back(&channel);
  channel.reads_waiting = true;
  return false;
}

void RdmaEndpoint::OnReadsDone(uint32_t count) {
  reads_ -= count;
  if (count == 0) return;
  for (RdmaChannel* channel : waiting_for_reads_) {
    channel->reads_waiting = false;
    Activate(*channel);
  }
  waiting_for_reads_.clear();
}

void RdmaEndpoint::LogBadPeer(std::string_view peer, const Status& status) {
  uint64_t suppressed = 0;
  const std::string_view host = peer.substr(0, peer.rfind(':'));
  if (!peer_log_.ShouldLog(host, now_ns_, &suppressed)) return;
  LOG(WARNING) << "closed a connection: " << status << " (" << suppressed
               << " more from this peer since the last report)";
}

}  // namespace slackline::transport
