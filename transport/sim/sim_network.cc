#include "transport/sim/sim_network.h"

#include <glog/logging.h>

#include <algorithm>

#include "transport/sim/sim_channel.h"
#include "transport/sim/sim_endpoint.h"

namespace slackline::transport {

SimNetwork::SimNetwork(uint64_t seed, const SimFaults& faults) : faults_(faults), rng_(seed) {
  CHECK_GT(faults.delay_min_ns, 0) << "a message that takes no time could keep time from moving";
}

SimNetwork::~SimNetwork() { CHECK_EQ(endpoint_count_, 0u) << "an endpoint outlives its network"; }

std::unique_ptr<SimEndpoint> SimNetwork::CreateEndpoint(std::string name) {
  return std::make_unique<SimEndpoint>(*this, std::move(name));
}

// ---- Time ----

void SimNetwork::At(TimeNs when_ns, std::function<void()> callback) {
  Schedule(when_ns, std::move(callback));
}

void SimNetwork::Schedule(TimeNs when_ns, std::function<void()> event) {
  events_.emplace(std::pair(std::max(when_ns, time_.now_ns), next_sequence_++), std::move(event));
}

bool SimNetwork::Step() {
  if (events_.empty()) return false;
  const auto next = events_.begin();
  const auto [when_ns, sequence] = next->first;
  const std::function<void()> event = std::move(next->second);
  events_.erase(next);
  time_.now_ns = when_ns;
  ++event_count_;
  Trace(0, static_cast<uint64_t>(when_ns), sequence);
  event();
  return true;
}

void SimNetwork::RunUntil(TimeNs until_ns) {
  while (NextEventNs() <= until_ns && Step()) {
  }
  time_.now_ns = std::max(time_.now_ns, until_ns);
}

TimeNs SimNetwork::NextEventNs() const {
  return events_.empty() ? kNever : events_.begin()->first.first;
}

// ---- Connections ----

SimChannel* SimNetwork::FindChannel(uint64_t id) const {
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second;
}

void SimNetwork::ArriveConnect(uint64_t client_id, const Address& address) {
  SimChannel* client = FindChannel(client_id);
  if (client == nullptr) return;
  SimEndpoint& caller = client->endpoint_;
  const auto listener = listeners_.find(address);
  if (listener != listeners_.end() &&
      Partitioned(caller.process_name_, listener->second->process_name_)) {
    return;  // The caller's time-out ends it.
  }
  const TimeNs answer_ns = NowNs() + Draw(faults_.delay_min_ns, faults_.delay_max_ns);
  if (listener == listeners_.end() || Chance(faults_.refuse_chance)) {
    Schedule(answer_ns, [this, client_id, address] {
      SimChannel* channel = FindChannel(client_id);
      if (channel == nullptr) return;
      channel->endpoint_.Enqueue({.channel = client_id,
                                  .kind = SimEndpoint::Ready::Kind::kFailed,
                                  .status = Unavailable(address + " refused the connection")});
    });
    return;
  }
  SimEndpoint& server = *listener->second;
  SimChannel* accepted =
      server.AddChannel("sim://" + caller.process_name_, SimChannel::State::kOpen);
  accepted->peer_id_ = client_id;
  accepted->peer_process_ = caller.process_name_;
  client->peer_id_ = accepted->id_;
  client->peer_process_ = server.process_name_;
  client->last_arrival_ns_ = answer_ns;  // Not even a cut is heard of before the answer.
  server.Enqueue({.channel = accepted->id_, .kind = SimEndpoint::Ready::Kind::kOpened});
  Schedule(answer_ns, [this, client_id] {
    SimChannel* channel = FindChannel(client_id);
    if (channel == nullptr) return;
    channel->endpoint_.Enqueue({.channel = client_id, .kind = SimEndpoint::Ready::Kind::kOpened});
  });
}

void SimNetwork::CutConnection(uint64_t channel_id) {
  SimChannel* channel = FindChannel(channel_id);
  if (channel == nullptr) return;
  for (SimChannel* end : {channel, FindChannel(channel->peer_id_)}) {
    if (end == nullptr || end->severed_) continue;
    end->Sever();
    // What still arrives may come late, after its sender has connected anew and resent it.
    if (SimChannel* other = FindChannel(end->peer_id_); other != nullptr && rng_.Below(2) == 0) {
      other->lingers_ns_ = NowNs() + Draw(1, 10 * faults_.notice_max_ns);
    }
    end->AnnounceClose("the connection was cut", Draw(1, faults_.notice_max_ns));
  }
}

void SimNetwork::Cut(std::string_view name, std::string_view other) {
  for (const auto& [id, channel] : channels_) {
    if (channel->endpoint_.process_name_ == name && channel->peer_process_ == other) {
      CutConnection(id);
    }
  }
}

void SimNetwork::Partition(std::string_view name, std::string_view other) {
  partitions_.emplace(name, other);
  partitions_.emplace(other, name);
}

void SimNetwork::Heal(std::string_view name, std::string_view other) {
  partitions_.erase({std::string(name), std::string(other)});
  partitions_.erase({std::string(other), std::string(name)});
  for (const auto& [id, channel] : channels_) channel->OnHealed();
}

bool SimNetwork::Partitioned(const std::string& name, const std::string& other) const {
  return partitions_.contains({name, other});
}

// ---- Chance and witness ----

TimeNs SimNetwork::Draw(TimeNs low_ns, TimeNs high_ns) {
  if (high_ns <= low_ns) return low_ns;
  return low_ns + static_cast<TimeNs>(rng_.Below(static_cast<uint64_t>(high_ns - low_ns + 1)));
}

void SimNetwork::Trace(uint64_t what, uint64_t a, uint64_t b) {
  for (const uint64_t word : {what, a, b}) trace_hash_ = Mix64(trace_hash_ ^ Mix64(word + 1));
}

void SimNetwork::Violation(std::string line) {
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(line));
}

}  // namespace slackline::transport
