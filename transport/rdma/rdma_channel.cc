#include "transport/rdma/rdma_channel.h"

#include <glog/logging.h>

#include <bit>
#include <utility>

#include "transport/rdma/memory.h"
#include "transport/rdma/rdma_endpoint.h"

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

RdmaChannel::RdmaChannel(RdmaEndpoint& endpoint, Role role, uint32_t id, std::string peer,
                         TcpChannel* bootstrap, TimeNs deadline_ns)
    : endpoint_(endpoint),
      role_(role),
      id_(id),
      peer_(std::move(peer)),
      phase_(role == Role::kConnector ? Phase::kConnecting : Phase::kGreeting),
      bootstrap_(bootstrap),
      deadline_ns_(deadline_ns),
      told_(role == Role::kConnector) {}

// ---- Requests and replies ----

Status RdmaChannel::Send(const proto::WireHeader& header, ConstBytes payload,
                         MutableBytes landing) {
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
  if (requests_->Find(header.request_id) != nullptr) {
    return InvalidArgument("request id " + std::to_string(header.request_id) + " is open already");
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(ibv_mr * payload_region, RegionOf(payload));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(ibv_mr * landing_region, RegionOf(landing));
  Outgoing message{.header = header,
                   .payload = payload,
                   .payload_key = payload_region == nullptr ? 0 : payload_region->lkey,
                   .kind = payload.empty()                  ? Frame::Payload::kNone
                           : payload.size() <= eager_bytes_ ? Frame::Payload::kEager
                                                            : Frame::Payload::kGranted,
                   .window = Windows::kNone,
                   .target = {}};
  const bool grants_payload = message.kind == Frame::Payload::kGranted;
  // A reply that fits a smaller landing comes eagerly.
  const bool grants_landing = landing.size() > eager_bytes_;
  if (grants_payload || grants_landing) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(
        message.window, windows_->Take(grants_payload ? payload : ConstBytes(), payload_region,
                                       grants_landing ? landing : MutableBytes(), landing_region));
  }
  RequestTable::Entry* entry = requests_->Insert(header.request_id);
  entry->landing = landing;
  entry->tag = message.window;
  outgoing_->Push(message);
  ++endpoint_.stats_.requests_sent;
  endpoint_.Activate(*this);
  return OkStatus();
}

Status RdmaChannel::Reply(const proto::WireHeader& header, ConstBytes payload) {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  if (header.kind != proto::MessageKind::kReply) return InvalidArgument("not a reply's header");
  if (payload.size() != header.payload_bytes) return SizeMismatch(header, payload);
  RequestTable::Entry* entry = AnswerableRequest(header.request_id);
  if (entry == nullptr) {
    return FailedPrecondition("request " + std::to_string(header.request_id) + " from " + peer_ +
                              " is not open");
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(ibv_mr * region, RegionOf(payload));
  Outgoing message{.header = header,
                   .payload = payload,
                   .payload_key = region == nullptr ? 0 : region->lkey,
                   .kind = Frame::Payload::kNone,
                   .window = Windows::kNone,
                   .target = landings_[entry->tag]};
  if (!payload.empty() && payload.size() <= eager_bytes_) {
    message.kind = Frame::Payload::kEager;
  } else if (!payload.empty() && payload.size() <= message.target.bytes) {
    message.kind = Frame::Payload::kWritten;
  }
  // Otherwise the landing is too small: the header alone tells the peer, who refuses it.
  entry->reply_queued = true;
  outgoing_->Push(message);
  endpoint_.Activate(*this);
  return OkStatus();
}

Status RdmaChannel::SendTaken(uint64_t request_id) {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen) return Aborted("the channel to " + peer_ + " is not open");
  RequestTable::Entry* entry = AnswerableRequest(request_id);
  if (entry == nullptr || entry->taken_sent) {
    return FailedPrecondition("request " + std::to_string(request_id) + " from " + peer_ +
                              " is not open, or was taken before");
  }
  entry->taken_sent = true;
  Outgoing message;
  message.header.kind = proto::MessageKind::kTaken;
  message.header.request_id = request_id;
  outgoing_->Push(message);
  endpoint_.Activate(*this);
  return OkStatus();
}

RequestTable::Entry* RdmaChannel::AnswerableRequest(uint64_t request_id) {
  if (role_ != Role::kAcceptor) return nullptr;
  RequestTable::Entry* entry = requests_->Find(request_id);
  return entry == nullptr || entry->reply_queued ? nullptr : entry;
}

// The key of the memory's region on this channel's device; null for no memory.
Result<ibv_mr*> RdmaChannel::RegionOf(ConstBytes memory) const {
  if (memory.empty()) return nullptr;
  const RdmaRegion* region = endpoint_.FindRegion(memory);
  if (region != nullptr) return region->on(*rail_);
  return Err(InvalidArgument(std::to_string(memory.size()) +
                             " bytes of a message do not lie in memory of Endpoint::Allocate, "
                             "which alone is registered"));
}

void RdmaChannel::ResumeReceiving() {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kOpen || !paused_) return;
  // The handler is asked again in the next pass, never from inside its own call.
  paused_ = false;
  endpoint_.Activate(*this);
}

// ---- Life ----

void RdmaChannel::CreateTables() {
  requests_ = std::make_unique<RequestTable>();
  const bool connector = role_ == Role::kConnector;
  outgoing_ = std::make_unique<Ring<Outgoing>>(connector ? kConnectorQueue : kAcceptorQueue);
  if (connector) return;
  landings_.resize(kMaxOpenRequests);
  free_landings_.reserve(kMaxOpenRequests);
  for (uint32_t i = kMaxOpenRequests; i > 0; --i) free_landings_.push_back(i - 1);
}

bool RdmaChannel::hot() const {
  if (phase_ == Phase::kBroken) return true;
  if (phase_ == Phase::kProving) return ready_to_send_;
  if (phase_ != Phase::kOpen) return false;
  return (asked_ != arrivals_.tail() && !paused_) || !outgoing_->empty() || CreditIsDue() ||
         windows_->any_retired() || next_read_ != asked_ || ready_to_send_;
}

void RdmaChannel::Service() {
  if (phase_ == Phase::kBroken) {
    Fail(broken_);
    return;
  }
  if (phase_ == Phase::kOpen) ServiceArrivals();
  if (phase_ == Phase::kOpen || phase_ == Phase::kProving) Flush();
}

void RdmaChannel::OnDeadline() {
  if (phase_ == Phase::kProving) {
    Fail(Unavailable("no RDMA packet gets through to " + peer_ +
                     ", though its port answers: this end is " + Describe(mine_) + ", the peer " +
                     Describe(theirs_) +
                     "; check that the GIDs are in one network and that UDP port 4791 is open"));
  } else if (role_ == Role::kConnector) {
    Fail(Unavailable("cannot connect to " + peer_ + ": it did not agree on RDMA in time"));
  } else {
    Shut();  // Silent, or refused and still there.
  }
}

void RdmaChannel::FailProtocol(const Status& status) {
  ++endpoint_.stats_.protocol_errors;
  endpoint_.LogBadPeer(peer_, status);
  Fail(status);
}

void RdmaChannel::Fail(const Status& status) {
  if (phase_ == Phase::kClosed) return;
  const bool told = told_;
  if (!told) endpoint_.LogBadPeer(peer_, status);
  Shut();
  if (!told) return;
  ++endpoint_.events_;
  endpoint_.handler_->OnClosed(*this, status);
}

void RdmaChannel::FailLater(const Status& status) {
  if (phase_ >= Phase::kBroken) return;
  DestroyPair();
  phase_ = Phase::kBroken;
  broken_ = status;
  endpoint_.Activate(*this);
}

void RdmaChannel::Close() {
  DCHECK(endpoint_.OnOwnerThread());
  if (phase_ != Phase::kClosed) Shut();
}

void RdmaChannel::Shut() {
  DestroyPair();
  phase_ = Phase::kClosed;
  if (bootstrap_ != nullptr) {
    bootstrap_->set_context(nullptr);
    bootstrap_->Close();
    bootstrap_ = nullptr;
  }
  endpoint_.Bury(*this);
}

// The fence. From the error state on the device refuses the peer; once the pair is destroyed no
// work of this channel is left in it, and with the windows gone its keys mean nothing.
void RdmaChannel::DestroyPair() {
  if (pair_) {
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    const int refused = ibv_modify_qp(pair_.get(), &error, IBV_QP_STATE);
    LOG_IF(ERROR, refused != 0) << "ibv_modify_qp to ERR: " << std::strerror(refused);
    const uint32_t number = pair_->qp_num;
    rail_->Forget(number);
    windows_.reset();
    endpoint_.ForgetPair(*this);
    pair_.reset();
    rail_->Forget(number);
  }
  for (uint64_t place = arrivals_.head(); place != arrivals_.tail(); ++place) {
    rail_->Recycle(arrivals_.at(place).buffer);
  }
  arrivals_.Clear();
  asked_ = next_read_ = arrivals_.tail();
  endpoint_.OnReadsDone(reads_);
  reads_ = 0;
  posted_.Clear();
  if (has_unit_) rail_->ReturnUnit(unit_);
  has_unit_ = false;
}

}  // namespace slackline::transport
