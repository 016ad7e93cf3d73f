// Arrivals: messages that came into receive buffers, and requests on their way to the handler.
// Requests are asked about and delivered in the order in which they were sent; the READs of one go
// on while those before it are delivered.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "transport/rdma/memory.h"
#include "transport/rdma/rdma_channel.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {

void RdmaChannel::ReturnCredit(uint32_t buffer) {
  rail_->Recycle(buffer);
  ++consumed_;
}

void RdmaChannel::OnReceived(uint32_t buffer, uint32_t bytes) {
  const ConstBytes message = rail_->Received(buffer, bytes);
  const Result<Frame> frame = ParseFrame(message);
  if (!frame) {
    rail_->Recycle(buffer);
    FailProtocol(frame.error());
    return;
  }
  credits_ += frame->credits;
  if (credits_ > theirs_.credits) {
    rail_->Recycle(buffer);
    FailProtocol(InvalidArgument(peer_ + " returned more credits than it has receive buffers"));
    return;
  }
  if (frame->credits > 0) endpoint_.Activate(*this);
  if (frame->type == Frame::Type::kMessage && phase_ == Phase::kOpen) {
    OnMessage(buffer, *frame, message);
    return;
  }
  rail_->Recycle(buffer);
  if (frame->type == Frame::Type::kReady) {
    OnReady();
  } else if (frame->type == Frame::Type::kMessage) {
    FailProtocol(InvalidArgument(peer_ + " sent a message before it opened its channel"));
  }
}

void RdmaChannel::OnMessage(uint32_t buffer, const Frame& frame, ConstBytes bytes) {
  const Result<proto::WireHeader> header =
      proto::ParseWireHeader(bytes.subspan<kFrameBytes, proto::kWireHeaderBytes>());
  Status status = header ? OkStatus() : header.error();
  const ConstBytes eager = bytes.subspan(kPrefixBytes);
  if (status.ok()) {
    const bool is_eager = frame.payload_kind == Frame::Payload::kEager;
    if (eager.size() != (is_eager ? header->payload_bytes : 0)) {
      status = DataLoss(peer_ + " sent " + std::to_string(eager.size()) +
                        " bytes behind a header that announces " +
                        std::to_string(header->payload_bytes));
    } else if (proto::IsRequest(header->kind) != (role_ == Role::kAcceptor)) {
      status = InvalidArgument(peer_ + " sent a message of the wrong direction: " +
                               std::string(proto::MessageKindName(header->kind)));
    }
  }
  if (!status.ok()) {
    rail_->Recycle(buffer);
    FailProtocol(status);
    return;
  }
  if (role_ == Role::kAcceptor) {
    OnRequestMessage(buffer, frame, *header);
    return;
  }
  // The callback comes last: it may close the channel.
  rail_->Recycle(buffer);
  ++consumed_;
  OnReplyMessage(frame, *header, eager);
}

// ---- The connector ----

void RdmaChannel::OnReplyMessage(const Frame& frame, const proto::WireHeader& header,
                                 ConstBytes eager) {
  RequestTable::Entry* entry = requests_->Find(header.request_id);
  const bool taken = header.kind == proto::MessageKind::kTaken;
  if (entry == nullptr) {
    FailProtocol(InvalidArgument(
        peer_ + " sent a message that answers no open request: " + proto::Describe(header)));
    return;
  }
  endpoint_.Activate(*this);
  ++endpoint_.events_;
  if (taken) {
    endpoint_.handler_->OnTaken(*this, header.request_id);
    return;
  }
  if (header.payload_bytes > entry->landing.size()) {
    FailProtocol(DataLoss(peer_ + " answered request " + std::to_string(header.request_id) +
                          " with " + std::to_string(header.payload_bytes) +
                          " bytes, its landing holds " + std::to_string(entry->landing.size())));
    return;
  }
  const MutableBytes payload = entry->landing.first(header.payload_bytes);
  const bool written = frame.payload_kind == Frame::Payload::kWritten;
  // Whether it wrote what it says is for the payload's hash to show, as damage on any transport.
  if (!payload.empty() && !written && eager.empty()) {
    FailProtocol(DataLoss(peer_ + " answered request " + std::to_string(header.request_id) +
                          " without its payload"));
    return;
  }
  if (!eager.empty()) {
    std::memcpy(payload.data(), eager.data(), eager.size());
    endpoint_.stats_.payload_bytes_copied += eager.size();
  }
  // Closed before the call: the handler may use the id and the landing again.
  if (entry->tag != Windows::kNone) windows_->Retire(entry->tag);
  requests_->Erase(header.request_id);
  endpoint_.Activate(*this);  // To end the grants.
  ++endpoint_.stats_.replies_received;
  endpoint_.stats_.payload_bytes_received += header.payload_bytes;
  endpoint_.handler_->OnReply(*this, header, payload);
}

// ---- The acceptor ----

void RdmaChannel::OnRequestMessage(uint32_t buffer, const Frame& frame,
                                   const proto::WireHeader& header) {
  const bool granted = frame.payload_kind == Frame::Payload::kGranted;
  const bool sound =
      frame.payload_kind != Frame::Payload::kWritten &&
      (granted ? frame.payload.bytes == header.payload_bytes
               : (header.payload_bytes > 0) == (frame.payload_kind == Frame::Payload::kEager));
  if (!sound || arrivals_.full()) {
    rail_->Recycle(buffer);
    FailProtocol(InvalidArgument(
        peer_ + (sound ? " sent more messages than it has credits"
                       : " sent a request whose payload is nowhere: " + proto::Describe(header))));
    return;
  }
  arrivals_.Push({.state = Arrival::State::kNew,
                  .buffer = buffer,
                  .frame = frame,
                  .header = header,
                  .landing = {},
                  .landing_key = 0,
                  .read_posted = 0,
                  .read_done = 0});
  endpoint_.Activate(*this);
}

void RdmaChannel::ServiceArrivals() {
  while (asked_ != arrivals_.tail() && !paused_) {
    Arrival& arrival = arrivals_.at(asked_);
    if (arrival.state == Arrival::State::kNew && !Admit(arrival)) return;
    if (!AskForLanding(arrival)) return;
    ++asked_;
    DeliverReady();
    if (phase_ != Phase::kOpen) return;
  }
}

// Opens the request. False: not now, or not at all.
bool RdmaChannel::Admit(Arrival& arrival) {
  RequestTable::Entry* entry = requests_->Find(arrival.header.request_id);
  // The peer has our reply and uses its id again, and the device has yet to say that the reply
  // left.
  if (entry != nullptr && entry->reply_queued) return false;
  const bool full = requests_->full();
  entry = requests_->Insert(arrival.header.request_id);
  if (entry == nullptr) {
    FailProtocol(InvalidArgument(
        peer_ + (full ? " has more than " + std::to_string(kMaxOpenRequests) + " requests open"
                      : " sent request id " + std::to_string(arrival.header.request_id) +
                            " while it is open")));
    return false;
  }
  entry->tag = free_landings_.back();
  free_landings_.pop_back();
  landings_[entry->tag] = arrival.frame.landing;
  arrival.state = Arrival::State::kUnasked;
  return true;
}

// False: later, or the channel is closed.
bool RdmaChannel::AskForLanding(Arrival& arrival) {
  if (arrival.header.payload_bytes == 0) {
    arrival.state = Arrival::State::kReady;
    return true;
  }
  const Landing answer = endpoint_.handler_->OnRequestArriving(*this, arrival.header);
  if (phase_ != Phase::kOpen) return false;
  if (answer.verdict == Landing::Verdict::kLater) {
    paused_ = true;
    return false;
  }
  if (answer.verdict == Landing::Verdict::kDrain) {
    // A granted payload is not even fetched.
    endpoint_.stats_.payload_bytes_drained += arrival.header.payload_bytes;
    arrival.state = Arrival::State::kReady;
    return true;
  }
  CHECK_EQ(answer.memory.size(), arrival.header.payload_bytes)
      << "the handler's landing must fit the payload exactly";
  arrival.landing = answer.memory;
  if (arrival.frame.payload_kind == Frame::Payload::kGranted) {
    const Result<ibv_mr*> region = RegionOf(answer.memory);
    CHECK(region) << region.error();
    arrival.landing_key = (*region)->lkey;
    arrival.state = Arrival::State::kReading;
    return true;
  }
  const ConstBytes eager = rail_
                               ->Received(arrival.buffer, static_cast<uint32_t>(kPrefixBytes) +
                                                              arrival.header.payload_bytes)
                               .subspan(kPrefixBytes);
  std::memcpy(arrival.landing.data(), eager.data(), eager.size());
  endpoint_.stats_.payload_bytes_copied += eager.size();
  endpoint_.stats_.payload_bytes_received += eager.size();
  arrival.state = Arrival::State::kReady;
  return true;
}

void RdmaChannel::DeliverReady() {
  while (arrivals_.head() != asked_ && arrivals_.front().state == Arrival::State::kReady) {
    const proto::WireHeader header = arrivals_.front().header;
    const MutableBytes payload = arrivals_.front().landing;
    ReturnCredit(arrivals_.front().buffer);
    arrivals_.Pop();
    next_read_ = std::max(next_read_, arrivals_.head());
    ++endpoint_.stats_.requests_received;
    ++endpoint_.events_;
    endpoint_.handler_->OnRequest(*this, header, payload);
    if (phase_ != Phase::kOpen) return;
  }
  endpoint_.Activate(*this);
}

}  // namespace slackline::transport
