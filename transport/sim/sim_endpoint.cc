#include "transport/sim/sim_endpoint.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/address.h"

namespace slackline::transport {
namespace {

constexpr size_t kPageBytes = 4096;

class SimRegion final : public Region {
 public:
  SimRegion(MutableBytes bytes, size_t* in_use_bytes) : Region(bytes), in_use_bytes_(in_use_bytes) {
    *in_use_bytes_ += bytes_.size();
  }
  ~SimRegion() override {
    *in_use_bytes_ -= bytes_.size();
    std::free(bytes_.data());
  }

 private:
  size_t* const in_use_bytes_;
};

}  // namespace

SimEndpoint::SimEndpoint(SimNetwork& network, std::string name)
    : network_(network), process_name_(std::move(name)) {
  ++network_.endpoint_count_;
}

SimEndpoint::~SimEndpoint() {
  CHECK(!polling_) << "an endpoint was destroyed inside its own Poll";
  while (!channels_.empty()) channels_.begin()->second->Close();
  for (const std::string& address : listening_) network_.listeners_.erase(address);
  --network_.endpoint_count_;
}

Result<std::string> SimEndpoint::Listen(std::string_view address) {
  SLACKLINE_ASSIGN_OR_RETURN(Address parsed, ParseAddress(address, "sim"));
  while (parsed.port == 0) {
    Address candidate = parsed;
    candidate.port = ++network_.next_port_;
    if (candidate.port == 0 || network_.listeners_.contains(candidate.ToString())) continue;
    parsed = candidate;
  }
  const std::string taken = parsed.ToString();
  if (!network_.listeners_.emplace(taken, this).second) {
    return Err(AlreadyExists("cannot listen at " + taken + ": the port is in use"));
  }
  listening_.push_back(taken);
  return taken;
}

Result<Channel*> SimEndpoint::Connect(std::string_view address, TimeNs timeout_ns) {
  SLACKLINE_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address, "sim"));
  const std::string target = parsed.ToString();
  SimChannel* channel = AddChannel(target, SimChannel::State::kConnecting);
  SimNetwork* network = &network_;
  const uint64_t id = channel->id_;
  const SimFaults& faults = network_.faults_;
  network_.Schedule(network_.NowNs() + network_.Draw(faults.delay_min_ns, faults.delay_max_ns),
                    [network, id, target] { network->ArriveConnect(id, target); });
  const TimeNs patience_ns = std::min(timeout_ns, kNever - network_.NowNs());
  network_.Schedule(network_.NowNs() + patience_ns, [network, id, target] {
    SimChannel* late = network->FindChannel(id);
    if (late == nullptr || late->state_ != SimChannel::State::kConnecting) return;
    late->endpoint_.Enqueue({.channel = id,
                             .kind = Ready::Kind::kFailed,
                             .status = Unavailable("no answer from " + target + " in time")});
  });
  return channel;
}

SimChannel* SimEndpoint::AddChannel(std::string peer, SimChannel::State state) {
  const uint64_t id = network_.next_channel_++;
  auto channel = std::make_unique<SimChannel>(network_, *this, id, std::move(peer), state);
  SimChannel* result = channel.get();
  channels_.emplace(id, std::move(channel));
  network_.channels_.emplace(id, result);
  return result;
}

void SimEndpoint::Bury(uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  network_.channels_.erase(channel);
  buried_.push_back(std::move(found->second));
  channels_.erase(found);
}

void SimEndpoint::Enqueue(Ready ready) {
  const bool was_empty = ready_.empty();
  ready_.push_back(std::move(ready));
  if (was_empty && on_ready_) on_ready_();
}

size_t SimEndpoint::Poll(TimeNs max_wait_ns) {
  CHECK(!polling_) << "Poll is not re-entrant";
  const size_t handled = HandleReady();
  if (handled > 0 || max_wait_ns <= 0 || woken_) {
    woken_ = false;
    return handled;
  }
  const TimeNs now_ns = network_.NowNs();
  const TimeNs deadline_ns = max_wait_ns > kNever - now_ns ? kNever : now_ns + max_wait_ns;
  while (ready_.empty() && !woken_ && network_.NextEventNs() <= deadline_ns && network_.Step()) {
  }
  // Nothing came in time. (Without events and without a deadline nothing ever will.)
  if (ready_.empty() && !woken_ && deadline_ns != kNever) network_.RunUntil(deadline_ns);
  woken_ = false;
  return HandleReady();
}

size_t SimEndpoint::HandleReady() {
  polling_ = true;
  // What the handlers cause arrives later, so that a Poll ends.
  const size_t count = ready_.size();
  for (size_t i = 0; i < count; ++i) {
    const Ready ready = std::move(ready_.front());
    ready_.pop_front();
    Handle(ready);
  }
  buried_.clear();
  polling_ = false;
  return count;
}

void SimEndpoint::Handle(const Ready& ready) {
  SimChannel* channel = network_.FindChannel(ready.channel);
  if (channel == nullptr) return;
  CHECK(handler_ != nullptr) << "the handler must be set before Poll";
  network_.Trace(1 + static_cast<uint64_t>(ready.kind), ready.channel, ready.reply_number);
  switch (ready.kind) {
    case Ready::Kind::kOpened:
      channel->state_ = SimChannel::State::kOpen;
      handler_->OnOpened(*channel);
      break;
    case Ready::Kind::kReceive:
      channel->Receive();
      break;
    case Ready::Kind::kReplySent:
      channel->ReleaseReplies(ready.reply_number);
      break;
    case Ready::Kind::kFailed:
      if (channel->state_ == SimChannel::State::kConnecting) channel->Fail(ready.status, false);
      break;
  }
}

Result<std::unique_ptr<Region>> SimEndpoint::Allocate(size_t size_bytes) {
  if (size_bytes > kMaxRegionBytes - region_bytes_) {
    return Err(ResourceExhausted("cannot allocate " + std::to_string(size_bytes) +
                                 " bytes for I/O: the simulator's limit is " +
                                 std::to_string(kMaxRegionBytes) + ", " +
                                 std::to_string(region_bytes_) + " in use; ask for less"));
  }
  const size_t rounded = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* memory =
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, std::max(rounded, kPageBytes)));
  if (memory == nullptr) return Err(ResourceExhausted("out of memory"));
  std::memset(memory, 0, size_bytes);
  return std::make_unique<SimRegion>(MutableBytes(memory, size_bytes), &region_bytes_);
}

}  // namespace slackline::transport
