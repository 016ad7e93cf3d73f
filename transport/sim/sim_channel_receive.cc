// What a simulated channel does with what arrives.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/hash.h"
#include "transport/sim/sim_channel.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"

namespace slackline::transport {

using proto::MessageKind;
using proto::WireHeader;

namespace {

// Ids of duplicated requests; the senders' own are small or, for a hello, the largest.
constexpr uint64_t kFirstDuplicateId = uint64_t{1} << 63;

}  // namespace

// ---- Arrival ----

void SimChannel::Deliver(std::shared_ptr<SimMessage> message, TimeNs delay_ns) {
  incoming_.push_back(std::move(message));
  last_arrival_ns_ = std::max(last_arrival_ns_, network_.NowNs() + delay_ns);
  ScheduleArrival(last_arrival_ns_);
}

void SimChannel::ScheduleArrival(TimeNs when_ns) {
  SimNetwork* network = &network_;
  network_.Schedule(when_ns, [network, id = id_] {
    if (SimChannel* channel = network->FindChannel(id)) channel->OnArrival();
  });
}

void SimChannel::OnArrival() {
  if (network_.Partitioned(endpoint_.process_name(), peer_process_)) {
    ++held_back_;
    return;
  }
  if (network_.NowNs() < lingers_ns_) {
    ScheduleArrival(lingers_ns_);
    return;
  }
  std::shared_ptr<SimMessage> message = std::move(incoming_.front());
  incoming_.pop_front();
  if (message->lost && !message->torn) return;
  inbox_.push_back(std::move(message));
  endpoint_.Enqueue({.channel = id_, .kind = SimEndpoint::Ready::Kind::kReceive});
}

void SimChannel::OnHealed() {
  if (network_.Partitioned(endpoint_.process_name(), peer_process_)) return;
  const SimFaults& faults = network_.faults_;
  for (; held_back_ > 0; --held_back_) {
    last_arrival_ns_ =
        std::max(last_arrival_ns_,
                 network_.NowNs() + network_.Draw(faults.delay_min_ns, faults.delay_max_ns));
    ScheduleArrival(last_arrival_ns_);
  }
}

void SimChannel::Receive() {
  while (state_ == State::kOpen && !inbox_.empty()) {
    const std::shared_ptr<SimMessage> front = inbox_.front();
    if (front->is_close) {
      Fail(front->status, false);
      return;
    }
    if (front->lost && !front->torn) {
      inbox_.pop_front();
      continue;
    }
    // A close that has arrived overtakes what nobody wants to read yet.
    if (paused_ && inbox_.back()->is_close) {
      Fail(inbox_.back()->status, false);
      return;
    }
    if (paused_ || (landed_ != nullptr && !landed_->complete)) return;
    if (ReceiveFront() == Progress::kWaits) return;
  }
}

void SimChannel::ResumeReceiving() {
  if (!paused_) return;
  paused_ = false;
  endpoint_.Enqueue({.channel = id_, .kind = SimEndpoint::Ready::Kind::kReceive});
}

void SimChannel::Fail(const Status& status, bool protocol_error) {
  if (protocol_error) ++endpoint_.stats_.protocol_errors;
  Poison();
  Die("the other end gave the connection up");
  endpoint_.handler_->OnClosed(*this, status);
}

// ---- Messages ----

SimChannel::Progress SimChannel::ReceiveFront() {
  const std::shared_ptr<SimMessage> message = inbox_.front();
  const Result<WireHeader> header = proto::ParseWireHeader(message->header_bytes);
  if (!header) {
    Fail(header.error(), true);
    return Progress::kWaits;
  }
  if (header->kind == MessageKind::kReply) return ReceiveReply(*message, *header);
  if (header->kind == MessageKind::kTaken) return ReceiveTaken(*header);
  return ReceiveRequest(*message, *header);
}

SimChannel::Progress SimChannel::ReceiveRequest(const SimMessage& message,
                                                const WireHeader& header) {
  Handler& handler = *endpoint_.handler_;
  ReleaseRepliesTo(header.request_id);
  if (state_ != State::kOpen) return Progress::kWaits;
  MutableBytes memory;
  if (header.payload_bytes > 0) {
    if (landed_ == nullptr) {
      if (MaybeDuplicate(message, header)) return Progress::kDone;
      const Landing landing = handler.OnRequestArriving(*this, header);
      if (state_ != State::kOpen) return Progress::kWaits;
      if (landing.verdict == Landing::Verdict::kLater) {
        paused_ = true;
        return Progress::kWaits;
      }
      const bool into = landing.verdict == Landing::Verdict::kInto;
      CHECK(!into || landing.memory.size() == header.payload_bytes)
          << "landing memory of " << landing.memory.size() << " bytes for " << Describe(header);
      const Progress progress = StartLanding(message, into ? landing.memory : MutableBytes{});
      if (message.lost) {
        inbox_.pop_front();
        return Progress::kDone;
      }
      if (progress == Progress::kWaits) return Progress::kWaits;
    }
    memory = landed_->memory;
    landed_.reset();
    (memory.empty() ? endpoint_.stats_.payload_bytes_drained
                    : endpoint_.stats_.payload_bytes_received) += header.payload_bytes;
  } else if (message.lost) {
    inbox_.pop_front();
    return Progress::kDone;
  }
  unanswered_[header.request_id] = false;
  duplicate_decided_ = duplicates_.contains(header.request_id);  // The request itself is next.
  inbox_.pop_front();
  ++endpoint_.stats_.requests_received;
  handler.OnRequest(*this, header, memory);
  return Progress::kDone;
}

SimChannel::Progress SimChannel::ReceiveReply(const SimMessage& message, const WireHeader& header) {
  const auto open = open_requests_.find(header.request_id);
  if (open == open_requests_.end()) {
    Fail(DataLoss("a reply to no open request: " + Describe(header)), true);
    return Progress::kWaits;
  }
  if (header.payload_bytes > open->second.landing.size()) {
    Fail(DataLoss("a reply of " + std::to_string(header.payload_bytes) +
                  " bytes, expected at most " + std::to_string(open->second.landing.size())),
         true);
    return Progress::kWaits;
  }
  const MutableBytes memory = open->second.landing.first(header.payload_bytes);
  if (landed_ == nullptr && !message.lost) {
    // Before the landing, which may be the same memory.
    CheckUnchanged(open->second.payload, open->second.payload_hash, "before the reply");
  }
  if (header.payload_bytes > 0 && landed_ == nullptr) {
    const Progress progress = StartLanding(message, memory);
    if (!message.lost && progress == Progress::kWaits) return Progress::kWaits;
  }
  if (message.lost) {
    inbox_.pop_front();
    return Progress::kDone;
  }
  landed_.reset();
  open_requests_.erase(open);
  inbox_.pop_front();
  ++endpoint_.stats_.replies_received;
  endpoint_.stats_.payload_bytes_received += header.payload_bytes;
  endpoint_.handler_->OnReply(*this, header, memory);
  return Progress::kDone;
}

SimChannel::Progress SimChannel::ReceiveTaken(const WireHeader& header) {
  const bool lost = inbox_.front()->lost;
  inbox_.pop_front();
  if (lost) return Progress::kDone;
  if (!open_requests_.contains(header.request_id)) {
    Fail(DataLoss("took a request that is not open: " + Describe(header)), true);
    return Progress::kWaits;
  }
  endpoint_.handler_->OnTaken(*this, header.request_id);
  return Progress::kDone;
}

// ---- Payloads ----

SimChannel::Progress SimChannel::StartLanding(const SimMessage& message, MutableBytes memory) {
  landed_ = std::make_unique<Landed>(Landed{.memory = memory});
  if (message.lost) {
    Poison();
    return Progress::kDone;
  }
  if (!memory.empty()) {
    landed_->filled = network_.rng_.Below(memory.size() + 1);
    std::copy_n(message.payload.begin(), landed_->filled, memory.begin());
  }
  const uint64_t landing = ++landing_number_;
  const TimeNs rest_ns = network_.Draw(0, network_.faults_.landing_max_ns);
  if (rest_ns == 0) {
    FinishLanding(landing);
    return Progress::kDone;
  }
  SimNetwork* network = &network_;
  network_.Schedule(network_.NowNs() + rest_ns, [network, id = id_, landing] {
    SimChannel* channel = network->FindChannel(id);
    if (channel == nullptr) return;
    channel->FinishLanding(landing);
    channel->endpoint_.Enqueue({.channel = id, .kind = SimEndpoint::Ready::Kind::kReceive});
  });
  return Progress::kWaits;
}

void SimChannel::FinishLanding(uint64_t landing) {
  if (landed_ == nullptr || landing != landing_number_) return;
  const SimMessage& message = *inbox_.front();
  Landed& landed = *landed_;
  if (!landed.memory.empty()) {
    std::copy(message.payload.begin() + static_cast<ptrdiff_t>(landed.filled),
              message.payload.end(), landed.memory.begin() + static_cast<ptrdiff_t>(landed.filled));
  }
  const ConstBytes arrived = landed.memory.empty() ? message.payload : ConstBytes(landed.memory);
  const uint64_t hash = Hash64(arrived);
  if (hash != message.payload_hash) {
    network_.Violation("a payload of " + std::to_string(arrived.size()) + " bytes from " + peer_ +
                       " (" + peer_process_ + ") to " + endpoint_.process_name() +
                       " changed while it was under way");
  }
  landed.complete = true;
  network_.Trace(6, id_, hash);
}

void SimChannel::Poison() {
  if (landed_ != nullptr && !landed_->complete) {
    const size_t torn = network_.rng_.Below(landed_->memory.size() + 1);
    std::fill_n(landed_->memory.begin(), torn, std::byte{0xFF});
  }
  landed_.reset();
}

bool SimChannel::MaybeDuplicate(const SimMessage& message, const WireHeader& header) {
  if (std::exchange(duplicate_decided_, true) || message.lost) return false;
  if (!network_.Chance(network_.faults_.duplicate_chance)) return false;
  // The copy comes first; the request itself, with its reply, is then the resend.
  WireHeader twin = header;
  twin.request_id = kFirstDuplicateId + ++network_.next_duplicate_;
  auto duplicate = std::make_shared<SimMessage>();
  proto::EncodeWireHeader(twin, duplicate->header_bytes);
  duplicate->payload = message.payload;
  duplicate->payload_hash = message.payload_hash;
  KeepCopy(*duplicate);
  duplicates_.insert(twin.request_id);
  inbox_.push_front(std::move(duplicate));
  return true;
}

}  // namespace slackline::transport
