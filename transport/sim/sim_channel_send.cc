// What a simulated channel does with what its owner sends, and how it ends.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/hash.h"
#include "transport/sim/sim_channel.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"

namespace slackline::transport {

using proto::WireHeader;

namespace {

// What kernels may hold of a connection whose sender is gone; more cannot arrive any more.
constexpr size_t kMaxBufferedBytes = 4u << 20;

}  // namespace

SimChannel::SimChannel(SimNetwork& network, SimEndpoint& endpoint, uint64_t id, std::string peer,
                       State state)
    : network_(network), endpoint_(endpoint), id_(id), peer_(std::move(peer)), state_(state) {}

// ---- Sending ----

Status SimChannel::Send(const WireHeader& header, ConstBytes payload, MutableBytes landing) {
  if (state_ == State::kClosed) return Aborted("the channel is closed");
  if (state_ == State::kConnecting) return FailedPrecondition("the channel is not open yet");
  if (!proto::IsRequest(header.kind) || payload.size() != header.payload_bytes) {
    return InvalidArgument("not a request, or not of its size: " + proto::Describe(header));
  }
  if (open_requests_.contains(header.request_id)) {
    return InvalidArgument("request id " + std::to_string(header.request_id) + " is open already");
  }
  if (open_requests_.size() >= kMaxOpenRequests) {
    return ResourceExhausted(std::to_string(kMaxOpenRequests) + " requests are open");
  }
  const std::shared_ptr<SimMessage> message = Transmit(header, payload);
  open_requests_[header.request_id] = {payload, message->payload_hash, landing};
  ++endpoint_.stats_.requests_sent;
  endpoint_.stats_.payload_bytes_sent += payload.size();
  return OkStatus();
}

Status SimChannel::Reply(const WireHeader& header, ConstBytes payload) {
  if (state_ != State::kOpen) return Aborted("the channel is closed");
  if (header.kind != proto::MessageKind::kReply || payload.size() != header.payload_bytes) {
    return InvalidArgument("not a reply, or not of its size: " + proto::Describe(header));
  }
  if (unanswered_.erase(header.request_id) == 0) {
    return FailedPrecondition("there is no open request " + std::to_string(header.request_id));
  }
  std::shared_ptr<SimMessage> message;  // None: nobody waits for the answer to a duplicate.
  if (duplicates_.erase(header.request_id) == 0) {
    message = Transmit(header, payload);
    ++endpoint_.stats_.replies_sent;
    endpoint_.stats_.payload_bytes_sent += payload.size();
  }
  unsent_replies_.push_back({header.request_id, std::move(message)});
  // A kernel may be done with the memory before the message arrives, an RDMA device after it.
  const TimeNs done_ns = network_.NowNs() + network_.Draw(1, 2 * network_.faults_.delay_max_ns);
  last_release_ns_ = std::max(last_release_ns_, done_ns);
  SimNetwork* network = &network_;
  network_.Schedule(last_release_ns_, [network, id = id_, number = ++replies_] {
    SimChannel* channel = network->FindChannel(id);
    if (channel == nullptr) return;
    channel->endpoint_.Enqueue(
        {.channel = id, .kind = SimEndpoint::Ready::Kind::kReplySent, .reply_number = number});
  });
  return OkStatus();
}

Status SimChannel::SendTaken(uint64_t request_id) {
  if (state_ != State::kOpen) return Aborted("the channel is closed");
  const auto request = unanswered_.find(request_id);
  if (request == unanswered_.end() || std::exchange(request->second, true)) {
    return FailedPrecondition("there is no open request " + std::to_string(request_id) +
                              ", or it was taken already");
  }
  if (duplicates_.contains(request_id)) return OkStatus();
  WireHeader header;
  header.kind = proto::MessageKind::kTaken;
  header.request_id = request_id;
  Transmit(header, {});
  return OkStatus();
}

std::shared_ptr<SimMessage> SimChannel::Transmit(const WireHeader& header, ConstBytes payload) {
  auto message = std::make_shared<SimMessage>();
  proto::EncodeWireHeader(header, message->header_bytes);
  message->payload = payload;
  message->payload_hash = Hash64(payload);
  SimChannel* peer = network_.FindChannel(peer_id_);
  if (severed_ || peer == nullptr) return message;  // Into the void: the close is on its way.
  const SimFaults& faults = network_.faults_;
  peer->Deliver(message, network_.Draw(faults.delay_min_ns, faults.delay_max_ns));
  if (network_.Chance(faults.cut_chance)) {
    SimNetwork* network = &network_;
    network_.Schedule(network_.NowNs() + network_.Draw(1, faults.delay_max_ns),
                      [network, id = id_] { network->CutConnection(id); });
  }
  return message;
}

void SimChannel::ReleaseReplies(uint64_t through) {
  while (state_ == State::kOpen && replies_released_ < through) {
    const UnsentReply reply = std::move(unsent_replies_.front());
    unsent_replies_.pop_front();
    ++replies_released_;
    if (reply.message != nullptr && !reply.message->lost) {
      CheckUnchanged(reply.message->payload, reply.message->payload_hash, "before OnReplySent");
      KeepCopy(*reply.message);
    }
    network_.Trace(8, id_, reply.request_id);
    endpoint_.handler_->OnReplySent(*this, reply.request_id);
  }
}

void SimChannel::ReleaseRepliesTo(uint64_t request_id) {
  for (size_t i = unsent_replies_.size(); i > 0; --i) {
    if (unsent_replies_[i - 1].request_id != request_id) continue;
    ReleaseReplies(replies_released_ + i);
    return;
  }
}

void SimChannel::KeepCopy(SimMessage& message) {
  if (!message.copy.empty() || message.payload.empty()) return;
  message.copy.assign(message.payload.begin(), message.payload.end());
  message.payload = message.copy;
}

void SimChannel::CheckUnchanged(ConstBytes payload, uint64_t hash, std::string_view when) {
  if (Hash64(payload) == hash) return;
  network_.Violation(endpoint_.process_name() + " changed a payload of " +
                     std::to_string(payload.size()) + " bytes to " + peer_ + " " +
                     std::string(when));
}

// ---- The end ----

void SimChannel::Sever() {
  if (severed_) return;
  severed_ = true;
  SimChannel* peer = network_.FindChannel(peer_id_);
  if (peer == nullptr) return;
  std::vector<SimMessage*> under_way;
  for (const auto* row : {&peer->inbox_, &peer->incoming_}) {
    for (const auto& message : *row) {
      if (!message->is_close) under_way.push_back(message.get());
    }
  }
  const bool landed = peer->landed_ != nullptr && peer->landed_->complete;
  size_t arriving = network_.rng_.Below(under_way.size() + 1);
  size_t buffered_bytes = 0;
  for (size_t i = landed ? 1 : 0; i < arriving; ++i) {
    buffered_bytes += under_way[i]->payload.size();
    if (buffered_bytes > kMaxBufferedBytes) arriving = i;
  }
  if (landed) arriving = std::max<size_t>(arriving, 1);
  for (size_t i = 0; i < under_way.size(); ++i) {
    SimMessage& message = *under_way[i];
    if (i < arriving) {
      KeepCopy(message);
      continue;
    }
    message.lost = true;
    // One whose landing has begun is broken off below; others may get that far.
    const bool landing = i == 0 && peer->landed_ != nullptr;
    message.torn = i == arriving && !landing && network_.rng_.Below(2) == 0;
  }
  if (arriving == 0 && peer->landed_ != nullptr) peer->Poison();
}

void SimChannel::AnnounceClose(std::string_view why, TimeNs delay_ns) {
  SimChannel* peer = network_.FindChannel(peer_id_);
  if (peer == nullptr) return;
  auto message = std::make_shared<SimMessage>();
  message->is_close = true;
  message->status = Unavailable(peer->peer_ + ": " + std::string(why));
  peer->Deliver(std::move(message), delay_ns);
}

void SimChannel::Close() {
  if (state_ != State::kClosed) Die("the other end closed the connection");
}

void SimChannel::Die(std::string_view why) {
  state_ = State::kClosed;
  if (!severed_) {
    Sever();
    const SimFaults& faults = network_.faults_;
    AnnounceClose(why, network_.Draw(faults.delay_min_ns, faults.delay_max_ns));
  }
  landed_.reset();
  open_requests_.clear();
  unsent_replies_.clear();
  incoming_.clear();
  inbox_.clear();
  network_.Trace(7, id_, 0);
  endpoint_.Bury(id_);
}

}  // namespace slackline::transport
