#include "transport/tcp/tcp_channel.h"

#include <glog/logging.h>

#include <bit>
#include <cstring>
#include <utility>

#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {
namespace {

// A request and its reply are queued at most once each, kTaken too: the queues cannot overflow.
constexpr size_t kConnectorQueue = std::bit_ceil(kMaxOpenRequests);
constexpr size_t kAcceptorQueue = std::bit_ceil(2 * kMaxOpenRequests);

Status SizeMismatch(const proto::WireHeader& header, ConstBytes payload) {
  return InvalidArgument("the header announces " + std::to_string(header.payload_bytes) +
                         " payload bytes, the payload has " + std::to_string(payload.size()));
}

}  // namespace

TcpChannel::TcpChannel(TcpEndpoint& endpoint, Role role, uint64_t id, std::string peer)
    : endpoint_(endpoint), role_(role), id_(id), peer_(std::move(peer)), socket_(endpoint.io_) {}

// ---- Requests and replies ----

Status TcpChannel::Send(const proto::WireHeader& header, ConstBytes payload, MutableBytes landing) {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  if (role_ != Role::kConnector) {
    return FailedPrecondition("requests are sent by the end that connected, " + peer_ + " did");
  }
  if (!proto::IsRequest(header.kind)) return InvalidArgument("not a request's header");
  if (payload.size() != header.payload_bytes) return SizeMismatch(header, payload);
  if (requests_->full()) {
    return ResourceExhausted(std::to_string(kMaxOpenRequests) + " requests to " + peer_ +
                             " are open: send again after a reply");
  }
  RequestTable::Entry* entry = requests_->Insert(header.request_id);
  if (entry == nullptr) {
    return InvalidArgument("request id " + std::to_string(header.request_id) + " is open already");
  }
  entry->landing = landing;
  queue_->Push(header, payload);
  ++endpoint_.stats_.requests_sent;
  endpoint_.Activate(*this);
  return OkStatus();
}

Status TcpChannel::Reply(const proto::WireHeader& header, ConstBytes payload) {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  if (header.kind != proto::MessageKind::kReply) return InvalidArgument("not a reply's header");
  if (payload.size() != header.payload_bytes) return SizeMismatch(header, payload);
  RequestTable::Entry* entry =
      role_ == Role::kAcceptor && requests_ ? requests_->Find(header.request_id) : nullptr;
  if (entry == nullptr || entry->reply_queued) {
    return FailedPrecondition("request " + std::to_string(header.request_id) + " from " + peer_ +
                              " is not open");
  }
  entry->reply_queued = true;
  queue_->Push(header, payload);
  endpoint_.Activate(*this);
  return OkStatus();
}

Status TcpChannel::SendTaken(uint64_t request_id) {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  RequestTable::Entry* entry =
      role_ == Role::kAcceptor && requests_ ? requests_->Find(request_id) : nullptr;
  if (entry == nullptr || entry->reply_queued || entry->taken_sent) {
    return FailedPrecondition("request " + std::to_string(request_id) + " from " + peer_ +
                              " is not open, or was taken before");
  }
  entry->taken_sent = true;
  proto::WireHeader header;
  header.kind = proto::MessageKind::kTaken;
  header.request_id = request_id;
  queue_->Push(header, {});
  endpoint_.Activate(*this);
  return OkStatus();
}

void TcpChannel::ResumeReceiving() {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen || reading_ != Reading::kPaused) return;
  // The handler is asked again in the next pass, never from inside its own call.
  reading_ = Reading::kHeader;
  read_progress_ns_ = endpoint_.now_ns_;
  endpoint_.NoteDeadline(DeadlineNs());
  endpoint_.Activate(*this);
}

uint64_t TcpChannel::bytes_moved() const {
  if (phase_ != Phase::kOpen) return bytes_read_;
  return bytes_read_ + AckedBytes(const_cast<TcpSocket&>(socket_).native_handle());
}

// ---- Life ----

void TcpChannel::StartConnecting(TimeNs deadline_ns, TimeNs timeout_ns) {
  connect_deadline_ns_ = deadline_ns;
  connect_timeout_ns_ = timeout_ns;
  endpoint_.NoteDeadline(deadline_ns);
}

void TcpChannel::ConnectTo(std::vector<SocketAddress> candidates) {
  candidates_ = std::move(candidates);
  next_candidate_ = 0;
  TryNextCandidate();
}

void TcpChannel::TryNextCandidate() {
  // Each turn uses up a candidate: the loop ends with them.
  while (next_candidate_ < candidates_.size()) {
    const SocketAddress& candidate = candidates_[next_candidate_++];
    boost::system::error_code error;
    socket_.close(error);
    socket_.open(candidate.protocol(), error);
    if (error) {
      connect_error_ = error.message();
      continue;
    }
    if (Status status = SetBufferSizes(socket_.native_handle(), endpoint_.options_.socket);
        !status.ok()) {
      connect_error_ = status.message();
      continue;
    }
    ++pending_waits;
    socket_.async_connect(candidate,
                          InSlot(write_slot_, [this](const boost::system::error_code& result) {
                            --pending_waits;
                            OnConnected(result.value());
                          }));
    return;
  }
  Fail(Unavailable("cannot connect to " + peer_ + ": " + connect_error_));
}

void TcpChannel::OnConnected(int error) {
  if (phase_ != Phase::kConnecting) return;
  if (error != 0) {
    connect_error_ = std::strerror(error);
    TryNextCandidate();
    return;
  }
  boost::system::error_code ignored;
  // A connect to a free port of this machine can meet itself (TCP's simultaneous open).
  if (socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored)) {
    connect_error_ = "nobody listens there";
    TryNextCandidate();
    return;
  }
  if (Status status = BecomeOpen(); !status.ok()) {
    Fail(status);
    return;
  }
  CreateTables();
  ++endpoint_.events_;
  endpoint_.handler_->OnOpened(*this);
}

Status TcpChannel::Adopt(TcpSocket socket) {
  socket_ = std::move(socket);
  return BecomeOpen();
}

Status TcpChannel::BecomeOpen() {
  SLACKLINE_RETURN_IF_ERROR(SetConnectedOptions(socket_.native_handle()));
  boost::system::error_code error;
  // Asio's readiness waits must not make the socket blocking again.
  socket_.native_non_blocking(true, error);
  if (error) return Unavailable(peer_ + ": " + error.message());
  phase_ = Phase::kOpen;
  opened_ns_ = endpoint_.now_ns_;
  endpoint_.NoteDeadline(DeadlineNs());
  endpoint_.Activate(*this);
  return OkStatus();
}

void TcpChannel::CreateTables() {
  requests_ = std::make_unique<RequestTable>();
  queue_ =
      std::make_unique<SendQueue>(role_ == Role::kConnector ? kConnectorQueue : kAcceptorQueue);
}

std::string TcpChannel::LocalHost() const {
  boost::system::error_code error;
  const SocketAddress local = socket_.local_endpoint(error);
  return error ? std::string() : local.address().to_string();
}

bool TcpChannel::hot() const {
  if (phase_ != Phase::kOpen) return false;
  const bool may_read = reading_ != Reading::kPaused && !read_waiting_ && !read_paced;
  const bool may_write = queue_ && !queue_->empty() && !write_waiting_ && !write_paced;
  return may_read || may_write;
}

void TcpChannel::Service() {
  // Writing first: replies of the last pass leave before more work comes in.
  if (phase_ == Phase::kOpen && queue_ && !queue_->empty() && !write_waiting_ && !write_paced) {
    ServiceWrites();
  }
  if (phase_ == Phase::kOpen && !read_waiting_ && !read_paced) ServiceReads();
}

TimeNs TcpChannel::DeadlineNs() const {
  const TcpOptions& options = endpoint_.options_;
  if (phase_ == Phase::kConnecting) return connect_deadline_ns_;
  if (phase_ != Phase::kOpen || reading_ == Reading::kPaused) return kNever;
  if (!requests_) return opened_ns_ + options.first_header_timeout_ns;
  const bool inside_message = reading_ != Reading::kHeader || header_filled_ > 0;
  return inside_message ? read_progress_ns_ + options.stall_timeout_ns : kNever;
}

Status TcpChannel::DeadlineStatus() const {
  if (phase_ == Phase::kConnecting) {
    return Unavailable("cannot connect to " + peer_ + ": no answer within " +
                       std::to_string(connect_timeout_ns_ / kNsPerMs) + " ms");
  }
  if (!requests_) {
    return Unavailable(peer_ + " connected and sent no message within " +
                       std::to_string(endpoint_.options_.first_header_timeout_ns / kNsPerMs) +
                       " ms");
  }
  return Unavailable(peer_ + " stopped in the middle of a message for " +
                     std::to_string(endpoint_.options_.stall_timeout_ns / kNsPerMs) + " ms");
}

void TcpChannel::FailProtocol(const Status& status) {
  ++endpoint_.stats_.protocol_errors;
  endpoint_.LogBadPeer(peer_, status);
  Fail(status);
}

void TcpChannel::Fail(const Status& status) {
  if (phase_ == Phase::kClosed) return;
  Shut();
  ++endpoint_.events_;
  endpoint_.handler_->OnClosed(*this, status);
}

void TcpChannel::Close() {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kClosed) Shut();
}

void TcpChannel::Shut() {
  phase_ = Phase::kClosed;
  // No system call on caller memory is ever in progress here (they do not block), so that with the
  // socket and the views gone nothing can touch it.
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (requests_) requests_->Clear();
  if (queue_) queue_->Clear();
  landing_ = {};
  endpoint_.Bury(*this);
}

}  // namespace slackline::transport
