#include "transport/auto/auto_endpoint.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace slackline::transport {
namespace {

// While others are busy or spin, the waiter, whose look at its reactor is a system call, is visited
// this often unless it was busy itself.
constexpr TimeNs kWaiterVisitNs = 50'000;
// Turns of a spin between looks at the clock.
constexpr int kSpinTurns = 16;

}  // namespace

// Memory of the allocating member that the others know.
class AutoEndpoint::SharedRegion final : public Region {
 public:
  explicit SharedRegion(std::unique_ptr<Region> region)
      : Region(region->bytes()), region_(std::move(region)) {}
  ~SharedRegion() override {
    for (MemoryUser* user : users_) user->Detach(bytes_);
  }
  Status AttachTo(MemoryUser& user) {
    SLACKLINE_RETURN_IF_ERROR(user.Attach(bytes_));
    users_.push_back(&user);
    return OkStatus();
  }

 private:
  std::unique_ptr<Region> region_;
  std::vector<MemoryUser*> users_;
};

Result<std::unique_ptr<Endpoint>> AutoEndpoint::Create(std::vector<Member> members,
                                                       PollMode poll_mode) {
  CHECK(!members.empty() && members.back().endpoint != nullptr) << "the last member waits";
  std::vector<Slot> slots;
  for (Member& member : members) {
    Slot& slot = slots.emplace_back();
    slot.waitable = dynamic_cast<Waitable*>(member.endpoint.get());
    slot.memory = dynamic_cast<MemoryUser*>(member.endpoint.get());
    slot.member = std::move(member);
  }
  auto* waiter = dynamic_cast<Waiter*>(slots.back().member.endpoint.get());
  CHECK(waiter != nullptr) << "the last member waits";
  for (const Slot& slot : slots) {
    if (slot.waitable == nullptr) continue;
    SLACKLINE_RETURN_ERR_IF_ERROR(waiter->Watch(slot.waitable->wait_fd()));
  }
  return std::unique_ptr<Endpoint>(new AutoEndpoint(std::move(slots), poll_mode));
}

AutoEndpoint::AutoEndpoint(std::vector<Slot> slots, PollMode poll_mode)
    : slots_(std::move(slots)),
      spinner_(poll_mode),
      sleeper_(slots_.back().member.endpoint.get()) {}

AutoEndpoint::~AutoEndpoint() = default;

void AutoEndpoint::set_handler(Handler* handler) {
  handler_ = handler;
  for (Slot& slot : slots_) {
    if (slot.member.endpoint) slot.member.endpoint->set_handler(this);
  }
}

// ---- Polling ----

size_t AutoEndpoint::Poll(TimeNs max_wait_ns) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  if (alone_ != nullptr) return alone_->Poll(max_wait_ns);
  size_t events = PollMembers();
  if (events == 0 && max_wait_ns > 0) events = Spin(spinner_.BudgetNs(max_wait_ns));
  if (events == 0 && max_wait_ns > 0 && !woken_.load(std::memory_order_relaxed)) {
    events = Sleep(max_wait_ns);
  }
  // Whoever was woken looks for work after this: it sees what was there before the Wake().
  woken_.exchange(false);
  return events;
}

size_t AutoEndpoint::PollMembers() {
  size_t events = 0;
  for (size_t i = 0; i + 1 < slots_.size(); ++i) {
    if (slots_[i].used) events += slots_[i].member.endpoint->Poll(0);
  }
  const TimeNs now_ns = time_.NowNs();
  if (!waiter_busy_ && now_ns - waiter_visit_ns_ < kWaiterVisitNs) return events;
  waiter_visit_ns_ = now_ns;
  const size_t waiters = waiter().member.endpoint->Poll(0);
  waiter_busy_ = waiters > 0;
  return events + waiters;
}

size_t AutoEndpoint::Spin(TimeNs budget_ns) {
  if (budget_ns <= 0) return 0;
  const TimeNs end_ns = time_.NowNs() + budget_ns;
  size_t events = 0;
  do {
    for (int turn = 0; turn < kSpinTurns && events == 0; ++turn) {
      CpuRelax();
      events = PollMembers();
    }
  } while (events == 0 && !woken_.load(std::memory_order_relaxed) && time_.NowNs() < end_ns);
  spinner_.Report(events > 0);
  return events;
}

size_t AutoEndpoint::Sleep(TimeNs max_wait_ns) {
  TimeNs wait_ns = max_wait_ns;
  for (const Slot& slot : slots_) {
    if (slot.waitable == nullptr || !slot.used) continue;
    if (!slot.waitable->ArmWait()) {
      wait_ns = 0;
      continue;
    }
    const TimeNs due_ns = slot.waitable->NextDeadlineNs();
    if (due_ns != kNever) wait_ns = std::clamp<TimeNs>(due_ns - time_.NowNs(), 0, wait_ns);
  }
  const size_t events = waiter().member.endpoint->Poll(wait_ns);
  waiter_busy_ = events > 0;
  waiter_visit_ns_ = time_.NowNs();
  return events + PollMembers();
}

void AutoEndpoint::Wake() {
  woken_.store(true);
  sleeper_.load()->Wake();
}

void AutoEndpoint::Use(size_t index) {
  slots_[index].used = true;
  const auto used =
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.used; });
  alone_ = used == 1 ? slots_[index].member.endpoint.get() : nullptr;
  Endpoint* sleeper = alone_ != nullptr ? alone_ : waiter().member.endpoint.get();
  if (sleeper_.exchange(sleeper) != sleeper) sleeper->Wake();
}

// ---- Memory and counts ----

Result<std::unique_ptr<Region>> AutoEndpoint::Allocate(size_t size_bytes) {
  const auto owner = std::find_if(slots_.begin(), slots_.end(),
                                  [](const Slot& slot) { return slot.member.endpoint != nullptr; });
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<Region> memory,
                             owner->member.endpoint->Allocate(size_bytes));
  auto region = std::make_unique<SharedRegion>(std::move(memory));
  for (Slot& slot : slots_) {
    if (&slot == &*owner || slot.memory == nullptr) continue;
    SLACKLINE_RETURN_ERR_IF_ERROR(region->AttachTo(*slot.memory));
  }
  return region;
}

const EndpointStats& AutoEndpoint::stats() const {
  stats_ = {};
  for (const Slot& slot : slots_) {
    if (slot.member.endpoint == nullptr) continue;
    const EndpointStats& part = slot.member.endpoint->stats();
    stats_.requests_sent += part.requests_sent;
    stats_.replies_received += part.replies_received;
    stats_.requests_received += part.requests_received;
    stats_.replies_sent += part.replies_sent;
    stats_.payload_bytes_sent += part.payload_bytes_sent;
    stats_.payload_bytes_received += part.payload_bytes_received;
    stats_.payload_bytes_copied += part.payload_bytes_copied;
    stats_.payload_bytes_drained += part.payload_bytes_drained;
    stats_.protocol_errors += part.protocol_errors;
  }
  return stats_;
}

}  // namespace slackline::transport
