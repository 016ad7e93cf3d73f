#include "transport/shm/shm_channel.h"

#include <glog/logging.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/shm/shm_endpoint.h"

namespace slackline::transport {
namespace {

// Between tries while too many others connect.
constexpr TimeNs kConnectRetryNs = kNsPerMs;

Status SizeMismatch(const proto::WireHeader& header, ConstBytes payload) {
  return InvalidArgument("the header announces " + std::to_string(header.payload_bytes) +
                         " payload bytes, the payload has " + std::to_string(payload.size()));
}

}  // namespace

ShmChannel::ShmChannel(ShmEndpoint& endpoint, Role role, std::string peer)
    : endpoint_(endpoint), role_(role), peer_(std::move(peer)) {
  kind = Kind::kChannel;
}

// ---- Requests and replies ----

Status ShmChannel::Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) {
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  if (role_ != Role::kConnector) {
    return FailedPrecondition("requests are sent by the end that connected, " + peer_ + " did");
  }
  if (!proto::IsRequest(header.kind)) return InvalidArgument("not a request's header");
  if (payload.size() != header.payload_bytes) return SizeMismatch(header, payload);
  if (requests_->full() || !HasRoom()) {
    return ResourceExhausted(std::to_string(kMaxOpenRequests) + " requests to " + peer_ +
                             " are open: send again after a reply");
  }
  uint64_t region = kNoRegion;
  uint64_t offset = 0;
  SLACKLINE_RETURN_IF_ERROR(Locate(payload, &region, &offset));
  RequestTable::Entry* entry = requests_->Insert(header.request_id);
  if (entry == nullptr) {
    return InvalidArgument("request id " + std::to_string(header.request_id) + " is open already");
  }
  entry->landing = landing;
  ++endpoint_.stats_.requests_sent;
  endpoint_.stats_.payload_bytes_sent += payload.size();
  Push(header, region, offset);
  return OkStatus();
}

Status ShmChannel::Reply(const proto::WireHeader& header, ConstBytes payload) {
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  if (header.kind != proto::MessageKind::kReply) return InvalidArgument("not a reply's header");
  if (payload.size() != header.payload_bytes) return SizeMismatch(header, payload);
  RequestTable::Entry* entry = FindAnswerable(header.request_id);
  if (entry == nullptr) {
    return FailedPrecondition("request " + std::to_string(header.request_id) + " from " + peer_ +
                              " is not open");
  }
  uint64_t region = kNoRegion;
  uint64_t offset = 0;
  SLACKLINE_RETURN_IF_ERROR(Locate(payload, &region, &offset));
  entry->reply_queued = true;
  (*written_)[writer_.written() % kReplySlots] = {header.request_id, header.payload_bytes, true};
  Push(header, region, offset);
  return OkStatus();
}

Status ShmChannel::SendTaken(uint64_t request_id) {
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  RequestTable::Entry* entry = FindAnswerable(request_id);
  if (entry == nullptr || entry->taken_sent) {
    return FailedPrecondition("request " + std::to_string(request_id) + " from " + peer_ +
                              " is not open, or was taken before");
  }
  entry->taken_sent = true;
  proto::WireHeader header;
  header.kind = proto::MessageKind::kTaken;
  header.request_id = request_id;
  (*written_)[writer_.written() % kReplySlots] = {request_id, 0, false};
  Push(header, kNoRegion, 0);
  return OkStatus();
}

// Open requests bound the ring's messages as well, unless the peer answers what it did not read.
bool ShmChannel::HasRoom() {
  if (!writer_.full()) return true;
  if (writer_.Consumed() && !writer_.full()) return true;
  if (doomed_.ok()) doomed_ = DataLoss(peer_ + " has answered requests that it has not read");
  return false;
}

RequestTable::Entry* ShmChannel::FindAnswerable(uint64_t request_id) {
  if (role_ != Role::kAcceptor) return nullptr;
  RequestTable::Entry* entry = requests_->Find(request_id);
  return entry != nullptr && !entry->reply_queued ? entry : nullptr;
}

void ShmChannel::ResumeReceiving() {
  // The handler is asked again in the next Service(), never from inside its own call.
  if (reading_ == Reading::kPaused) reading_ = Reading::kPayload;
}

Status ShmChannel::Locate(ConstBytes payload, uint64_t* region, uint64_t* offset) {
  if (payload.empty()) return OkStatus();
  const ShmEndpoint::OwnRegion* own = endpoint_.FindRegion(payload);
  if (own == nullptr) {
    return InvalidArgument(
        "a payload outside of the memory that Endpoint::Allocate gave cannot be "
        "shared");
  }
  *region = own->id;
  *offset = static_cast<uint64_t>(payload.data() - own->memory->bytes().data());
  const size_t place = own->id % kMaxShmRegions;
  if (passed_[place]) return OkStatus();
  passed_.set(place);
  const ShmMessage message{
      .kind = ShmKind::kRegion, .id = own->id, .size_bytes = own->memory->mapped_bytes()};
  const int error = SendShmMessage(socket_, message, own->memory->fd());
  if (error != 0 && doomed_.ok()) {
    doomed_ = Unavailable("cannot share memory with " + peer_ + ": " + std::strerror(error));
  }
  return OkStatus();
}

void ShmChannel::Push(const proto::WireHeader& header, uint64_t region, uint64_t offset) {
  CHECK(!writer_.full()) << "open requests bound the messages";
  writer_.Push(header, region, offset);
  ring_due_ = true;
  // Inside a Poll its end rings, once for all messages.
  if (!endpoint_.polling_) RingPeer();
}

// The writer publishes and then looks whether the reader sleeps; the reader says that it sleeps and
// then looks for news (Arm). The fences make one of them see the other.
void ShmChannel::RingPeer() {
  if (!ring_due_ || phase_ != Phase::kOpen) return;
  ring_due_ = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer_sleeps_->value.load(std::memory_order_relaxed) == 0) return;
  if (peer_sleeps_->value.exchange(0, std::memory_order_relaxed) == 0) return;
  ++endpoint_.rings_;
  // A full queue will wake it as well; a broken socket shows as a hang-up.
  (void)SendShmMessage(socket_, {.kind = ShmKind::kRing});
}

bool ShmChannel::Arm() {
  if (phase_ != Phase::kOpen) return true;
  armed_ = true;
  own_sleeps_->value.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool wants_to_read =
      reading_ == Reading::kPayload ||
      (reading_ == Reading::kNothing && reader_.Available() != std::optional<uint64_t>(0));
  const bool consumed = role_ == Role::kAcceptor && writer_.HasNews();
  return !(wants_to_read || consumed || PeerClosed() || !doomed_.ok());
}

void ShmChannel::Disarm() {
  if (!armed_) return;
  armed_ = false;
  if (phase_ == Phase::kOpen) own_sleeps_->value.store(0, std::memory_order_relaxed);
}

void ShmChannel::ForgetRegion(uint64_t id) {
  const size_t place = id % kMaxShmRegions;
  if (phase_ != Phase::kOpen || !passed_[place]) return;
  passed_.reset(place);
  const int error = SendShmMessage(socket_, {.kind = ShmKind::kForget, .id = id});
  if (error != 0 && doomed_.ok()) {
    doomed_ = Unavailable("cannot take memory back from " + peer_ + ": " + std::strerror(error));
  }
}

// ---- Life ----

void ShmChannel::StartConnecting(std::string socket_name, TimeNs now_ns, TimeNs timeout_ns) {
  socket_name_ = std::move(socket_name);
  retry_ns_ = now_ns;
  deadline_ns_ = now_ns + timeout_ns;
  timeout_ns_ = timeout_ns;
  endpoint_.NoteDeadline(retry_ns_);
}

void ShmChannel::TryConnect(TimeNs now_ns) {
  retry_ns_ = kNever;
  const int error = ConnectLocal(socket_name_, &socket_);
  if (error == EAGAIN || error == EINTR) {
    retry_ns_ = now_ns + kConnectRetryNs;
    return;
  }
  if (error == ECONNREFUSED) {
    Fail(Unavailable("cannot connect to " + peer_ +
                     ": nobody listens there in this host's network "
                     "namespace, and shared memory reaches no other"));
    return;
  }
  if (error != 0) {
    Fail(Unavailable("cannot connect to " + peer_ + ": " + std::strerror(error)));
    return;
  }
  ++endpoint_.events_;
  phase_ = Phase::kGreeting;
  Status status = endpoint_.WatchSocket(socket_, *this);
  if (status.ok()) status = SendHello();
  if (!status.ok()) Fail(status);
}

Status ShmChannel::SendHello() {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Fd memory, CreateSegmentMemory(sizeof(SharedSegment)));
  SLACKLINE_RETURN_IF_ERROR(MapSegment(memory));
  const ShmMessage hello{.kind = ShmKind::kHello, .size_bytes = sizeof(SharedSegment)};
  const int error = SendShmMessage(socket_, hello, memory.get());
  if (error == 0) return OkStatus();
  return Unavailable("cannot connect to " + peer_ + ": " + std::strerror(error));
}

void ShmChannel::Adopt(Fd socket, TimeNs deadline_ns) {
  socket_ = std::move(socket);
  phase_ = Phase::kGreeting;
  deadline_ns_ = deadline_ns;
  endpoint_.NoteDeadline(deadline_ns);
  if (const Status status = endpoint_.WatchSocket(socket_, *this); !status.ok()) Fail(status);
}

Status ShmChannel::MapSegment(const Fd& memory) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      segment_, Mapping::Create(memory, sizeof(SharedSegment), /*writable=*/true));
  // Zero bytes are this type's initial state; its members are trivial apart from their atomicity.
  auto& shared = *reinterpret_cast<SharedSegment*>(segment_.data());
  const bool connector = role_ == Role::kConnector;
  own_closed_ = connector ? &shared.connector_closed : &shared.acceptor_closed;
  peer_closed_ = connector ? &shared.acceptor_closed : &shared.connector_closed;
  own_sleeps_ = connector ? &shared.connector_sleeps : &shared.acceptor_sleeps;
  peer_sleeps_ = connector ? &shared.acceptor_sleeps : &shared.connector_sleeps;
  const RingView requests = RingView::Of(shared.requests);
  const RingView replies = RingView::Of(shared.replies);
  writer_ = RingWriter(connector ? requests : replies);
  reader_ = RingReader(connector ? replies : requests);
  requests_ = std::make_unique<RequestTable>();
  if (!connector) written_ = std::make_unique<std::array<Written, kReplySlots>>();
  return OkStatus();
}

void ShmChannel::BecomeOpen() {
  phase_ = Phase::kOpen;
  deadline_ns_ = kNever;
  ++endpoint_.events_;
  endpoint_.handler_->OnOpened(*this);
}

void ShmChannel::OnDeadline(TimeNs now_ns) {
  if (now_ns < deadline_ns_) {
    TryConnect(now_ns);
  } else if (role_ == Role::kConnector) {
    Fail(Unavailable("cannot connect to " + peer_ + ": no answer within " +
                     std::to_string(timeout_ns_ / kNsPerMs) + " ms"));
  } else {
    Fail(Unavailable(peer_ + " connected and said nothing for too long"));
  }
}

void ShmChannel::FailProtocol(const Status& status) {
  ++endpoint_.stats_.protocol_errors;
  endpoint_.LogBadPeer(peer_, status);
  Fail(status);
}

void ShmChannel::Fail(const Status& status) {
  if (phase_ == Phase::kClosed) return;
  const bool known = phase_ == Phase::kOpen || role_ == Role::kConnector;
  Shut();
  ++endpoint_.events_;
  if (known) endpoint_.handler_->OnClosed(*this, status);
}

void ShmChannel::Close() {
  if (phase_ != Phase::kClosed) Shut();
}

void ShmChannel::Shut() {
  phase_ = Phase::kClosed;
  if (own_closed_ != nullptr) {
    own_closed_->value.store(1, std::memory_order_release);
    // Before anything that the caller writes to its memory from now on: see PeerClosed.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  socket_.Reset();
  // The segment and the peer's memory stay mapped until the channel is reaped: a call of this
  // channel may be under way further up.
  landing_ = {};
  reading_ = Reading::kNothing;
  if (requests_) requests_->Clear();
  endpoint_.Bury(*this);
}

}  // namespace slackline::transport
