// Receiving: what the peer wrote, copied out before it is believed.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_endpoint.h"

namespace slackline::transport {
namespace {

// Messages of one channel in one pass, and of its socket in one visit.
constexpr int kMaxMessagesPerPass = 64;
constexpr int kMaxSocketMessages = 64;

}  // namespace

// ---- The socket ----

void ShmChannel::OnSocket(bool hang_up) {
  for (int i = 0; i < kMaxSocketMessages && phase_ != Phase::kClosed; ++i) {
    Result<ShmReceived> received = ReceiveShmMessage(socket_);
    if (!received) {
      // A welcome tells a connector of another version which one this is.
      if (phase_ != Phase::kOpen) (void)SendShmMessage(socket_, {.kind = ShmKind::kWelcome});
      FailProtocol(Status(received.error().code(), peer_ + ": " + received.error().message()));
      return;
    }
    if (received->what == ShmReceived::What::kNothing) {
      if (!hang_up) return;
      received->what = ShmReceived::What::kEnd;
    }
    if (received->what == ShmReceived::What::kEnd) {
      Fail(Unavailable(peer_ + (phase_ == Phase::kOpen ? " left" : " hung up before it welcomed")));
      return;
    }
    HandleMessage(received->message, received->descriptor);
  }
}

void ShmChannel::HandleMessage(const ShmMessage& message, const Fd& descriptor) {
  const bool open = phase_ == Phase::kOpen;
  const bool acceptor = role_ == Role::kAcceptor;
  Status status;
  if (message.kind == ShmKind::kRing) return;
  if (message.kind == ShmKind::kRegion && open) {
    status = peer_memory_.Add(message.id, message.size_bytes, descriptor);
  } else if (message.kind == ShmKind::kForget && open) {
    // What is being copied from must not vanish.
    status = reading_ != Reading::kNothing && source_region_ == message.id
                 ? InvalidArgument("took back memory that a message of its names")
                 : peer_memory_.Remove(message.id);
  } else if (message.kind == ShmKind::kHello && !open && acceptor &&
             message.size_bytes == sizeof(SharedSegment)) {
    status = MapSegment(descriptor);
    if (status.ok() && SendShmMessage(socket_, {.kind = ShmKind::kWelcome}) == 0) {
      BecomeOpen();
      return;
    }
  } else if (message.kind == ShmKind::kWelcome && !open && !acceptor) {
    BecomeOpen();
    return;
  } else {
    status =
        InvalidArgument("a message of kind " + std::to_string(static_cast<uint16_t>(message.kind)) +
                        " at a time when none may come");
  }
  if (!status.ok()) FailProtocol(Status(status.code(), peer_ + " " + status.message()));
}

// ---- The segment ----

// After a copy: the acquire fence keeps the copy's reads before the flag's, so that reads of what
// was written after the peer's Close() are followed by a raised flag.
bool ShmChannel::PeerClosed() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return peer_closed_->value.load(std::memory_order_relaxed) != 0;
}

void ShmChannel::Service() {
  if (phase_ != Phase::kOpen) return;
  if (!doomed_.ok() || PeerClosed()) {
    Fail(doomed_.ok() ? Unavailable(peer_ + " left") : doomed_);
    return;
  }
  // Looked at before the consumed replies are: a request that uses an id again was written after
  // the reply to the id's last use was consumed.
  const std::optional<uint64_t> available = reader_.Available();
  if (!available) {
    FailProtocol(DataLoss(peer_ + " claims more messages than its ring holds"));
    return;
  }
  if (role_ == Role::kAcceptor) ReportConsumed();
  if (phase_ == Phase::kOpen) ReadMessages(*available);
}

void ShmChannel::ReportConsumed() {
  const std::optional<uint64_t> consumed = writer_.Consumed();
  if (!consumed) {
    FailProtocol(DataLoss(peer_ + " claims to have read what was not written"));
    return;
  }
  while (reported_ < *consumed && phase_ == Phase::kOpen) {
    const Written message = (*written_)[reported_++ % kReplySlots];
    if (!message.is_reply) continue;
    // Only now is the request closed: a peer that sends on without reading its replies meets the
    // bound on open requests.
    requests_->Erase(message.request_id);
    ++endpoint_.stats_.replies_sent;
    endpoint_.stats_.payload_bytes_sent += message.payload_bytes;
    ++endpoint_.events_;
    endpoint_.handler_->OnReplySent(*this, message.request_id);
  }
}

void ShmChannel::ReadMessages(uint64_t available) {
  size_t budget_bytes = endpoint_.options_.pass_bytes;
  for (int turn = 0; turn < kMaxMessagesPerPass && phase_ == Phase::kOpen; ++turn) {
    if (reading_ == Reading::kPaused) return;
    if (reading_ == Reading::kNothing) {
      if (static_cast<uint64_t>(turn) >= available || !BeginMessage()) return;
      if (reading_ != Reading::kPayload) continue;  // It was complete, or has to wait.
    }
    if (header_.payload_bytes > 0 && source_ == nullptr) {
      AskForLanding();  // Once more, after ResumeReceiving.
      continue;
    }
    const size_t take = std::min(landing_.size() - filled_, budget_bytes);
    std::memcpy(landing_.data() + filled_, source_ + filled_, take);
    filled_ += take;
    budget_bytes -= take;
    if (filled_ < landing_.size()) return;
    FinishMessage();
    if (budget_bytes == 0) return;
  }
}

bool ShmChannel::BeginMessage() {
  const SharedSlot slot = reader_.Front();
  Result<proto::WireHeader> parsed = proto::ParseWireHeader(slot.header);
  if (!parsed) {
    FailProtocol(Status(parsed.error().code(), peer_ + ": " + parsed.error().message()));
    return false;
  }
  header_ = *parsed;
  source_region_ = slot.region;
  source_offset_ = slot.offset;
  source_ = nullptr;
  landing_ = {};
  filled_ = 0;
  if (role_ == Role::kAcceptor) {
    BeginRequest();
  } else {
    BeginReply();
  }
  return phase_ == Phase::kOpen;
}

void ShmChannel::BeginRequest() {
  if (!proto::IsRequest(header_.kind)) {
    FailProtocol(InvalidArgument(peer_ + " sent a message of the wrong direction: " +
                                 std::string(proto::MessageKindName(header_.kind))));
    return;
  }
  if (requests_->Insert(header_.request_id) == nullptr) {
    FailProtocol(InvalidArgument(
        peer_ +
        (requests_->full()
             ? " has more than " + std::to_string(kMaxOpenRequests) + " requests open"
             : " sent request id " + std::to_string(header_.request_id) + " while it is open")));
    return;
  }
  if (header_.payload_bytes == 0) {
    FinishMessage();
    return;
  }
  AskForLanding();
}

void ShmChannel::AskForLanding() {
  reading_ = Reading::kPayload;
  const Landing answer = endpoint_.handler_->OnRequestArriving(*this, header_);
  if (phase_ != Phase::kOpen) return;
  switch (answer.verdict) {
    case Landing::Verdict::kInto:
      CHECK_EQ(answer.memory.size(), header_.payload_bytes)
          << "the handler's landing must fit the payload exactly";
      landing_ = answer.memory;
      (void)FindSource();
      return;
    case Landing::Verdict::kDrain:
      endpoint_.stats_.payload_bytes_drained += header_.payload_bytes;
      FinishMessage();
      return;
    case Landing::Verdict::kLater:
      reading_ = Reading::kPaused;
      return;
  }
}

void ShmChannel::BeginReply() {
  RequestTable::Entry* entry = requests_->Find(header_.request_id);
  const bool reply = header_.kind == proto::MessageKind::kReply;
  const bool taken = header_.kind == proto::MessageKind::kTaken && header_.payload_bytes == 0;
  if (entry == nullptr || !(reply || taken)) {
    FailProtocol(InvalidArgument(
        peer_ + " sent a message that answers no open request: " + proto::Describe(header_)));
    return;
  }
  if (header_.payload_bytes > entry->landing.size()) {
    FailProtocol(DataLoss(peer_ + " answered request " + std::to_string(header_.request_id) +
                          " with " + std::to_string(header_.payload_bytes) +
                          " bytes, its landing holds " + std::to_string(entry->landing.size())));
    return;
  }
  landing_ = entry->landing.first(header_.payload_bytes);
  if (header_.payload_bytes == 0) {
    FinishMessage();
    return;
  }
  reading_ = Reading::kPayload;
  (void)FindSource();
}

bool ShmChannel::FindSource() {
  if (!peer_memory_.Knows(source_region_)) {
    // It was passed before the message was written: it waits in the socket.
    const Reading reading = reading_;
    reading_ = Reading::kNothing;  // Nothing is copied from yet.
    OnSocket(/*hang_up=*/false);
    if (phase_ != Phase::kOpen) return false;
    reading_ = reading;
  }
  const ConstBytes source =
      peer_memory_.Find(source_region_, source_offset_, header_.payload_bytes);
  if (source.empty()) {
    FailProtocol(InvalidArgument(peer_ + " names " + std::to_string(header_.payload_bytes) +
                                 " bytes at " + std::to_string(source_offset_) + " of memory " +
                                 std::to_string(source_region_) + ", which it has not shared"));
    return false;
  }
  source_ = source.data();
  return true;
}

void ShmChannel::FinishMessage() {
  if (PeerClosed()) {
    Fail(Unavailable(peer_ + " left"));
    return;
  }
  const MutableBytes payload = landing_;
  reading_ = Reading::kNothing;
  landing_ = {};
  source_ = nullptr;
  // Before the call, which may answer or send: see ReportConsumed and Service.
  reader_.Pop();
  // An acceptor waits for its replies' memory; a connector has it back with the reply.
  if (role_ == Role::kConnector) ring_due_ = true;
  ++endpoint_.events_;
  endpoint_.stats_.payload_bytes_received += payload.size();
  if (role_ == Role::kAcceptor) {
    ++endpoint_.stats_.requests_received;
    endpoint_.handler_->OnRequest(*this, header_, payload);
    return;
  }
  if (header_.kind == proto::MessageKind::kTaken) {
    endpoint_.handler_->OnTaken(*this, header_.request_id);
    return;
  }
  // Closed before the call: the handler may use the id and the landing again.
  requests_->Erase(header_.request_id);
  ++endpoint_.stats_.replies_received;
  endpoint_.handler_->OnReply(*this, header_, payload);
}

}  // namespace slackline::transport
