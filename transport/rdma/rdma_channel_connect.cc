// Agreement with the peer, over the bootstrap connection: a hello each way makes two connected
// queue pairs, and a first message each way over them shows that the path works.
//
//   connector                                acceptor
//   hello (its pair, GID, limits)  ------->  makes and connects its pair
//   connects its pair              <-------  hello, or a refusal with its reason
//   kReady, by RDMA                ------->  open
//   open                           <-------  kReady, by RDMA
#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "transport/rdma/rdma_channel.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {
namespace {

constexpr uint64_t kHelloRequestId = 1;
// Room in a work request for a message of this size: frame, header and a small payload.
constexpr uint32_t kInlineBytes = kPrefixBytes + 64;
// What a device may be asked to WRITE at once; rxe and all others take more.
constexpr uint32_t kMaxWriteBytes = 8u << 20;
// 0.64 ms: how long a sender waits that found no receive buffer, which credits prevent.
constexpr uint8_t kMinRnrTimer = 12;

}  // namespace

void RdmaChannel::SayHello() {
  phase_ = Phase::kGreeting;
  Status status = MakePair(/*rail_hint=*/UINT32_MAX);
  if (status.ok()) status = SendHello();
  if (!status.ok()) Fail(status);
}

Status RdmaChannel::SendHello() {
  mine_ = MyHello();
  EncodeHello(mine_, hello_out_);
  proto::WireHeader header;
  header.kind = proto::MessageKind::kHello;
  header.request_id = kHelloRequestId;
  header.payload_bytes = kHelloBytes;
  return bootstrap_->Send(header, hello_out_, hello_in_);
}

Hello RdmaChannel::MyHello() const {
  const RdmaPort& port = rail_->port();
  const RdmaGid& gid = port.GidFor(bootstrap_->LocalHost());
  Hello hello;
  hello.queue_pair = pair_->qp_num;
  hello.first_packet = first_packet_;
  std::memcpy(hello.gid.data(), gid.gid.raw, hello.gid.size());
  hello.lid = port.state.lid;
  hello.ethernet = port.ethernet();
  hello.reads = static_cast<uint8_t>(std::clamp(port.limits.max_qp_rd_atom, 0, 255));
  const uint32_t active = MtuBytes(port.state.active_mtu);
  const uint32_t wanted = endpoint_.options_.mtu_bytes;
  hello.mtu_bytes = wanted == 0 ? active : std::min(wanted, active);
  hello.eager_bytes = endpoint_.options_.eager_bytes;
  hello.credits = kReceiveCredits;
  hello.rail = rail_->index();
  hello.device = port.device;
  return hello;
}

Status RdmaChannel::MakePair(uint32_t rail_hint) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(rail_,
                                    endpoint_.ChooseRail(bootstrap_->LocalHost(), rail_hint));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(unit_, rail_->TakeUnit());
  has_unit_ = true;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = rail_->completions();
  attributes.srq = rail_->receives();
  attributes.cap.max_send_wr = kSendQueueDepth;
  attributes.cap.max_send_sge = WorkList::kMaxPieces;
  attributes.cap.max_inline_data = kInlineBytes;
  attributes.qp_type = IBV_QPT_RC;
  pair_.reset(ibv_create_qp(rail_->domain(), &attributes));
  if (!pair_) {
    // Not every device has so much room; then messages are fetched from their staging memory.
    attributes.cap.max_inline_data = 0;
    pair_.reset(ibv_create_qp(rail_->domain(), &attributes));
  }
  if (!pair_) return ErrnoStatus(errno, "ibv_create_qp on " + rail_->port().device);
  inline_bytes_ = attributes.cap.max_inline_data;
  windows_ = std::make_unique<Windows>(*rail_);
  first_packet_ = endpoint_.NextPacketNumber();
  endpoint_.NotePair(*this);

  ibv_qp_attr initial{};
  initial.qp_state = IBV_QPS_INIT;
  initial.port_num = rail_->port().port;
  // The acceptor reads and writes; it lets nobody in.
  const bool connector = role_ == Role::kConnector;
  initial.qp_access_flags = connector ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0;
  const int error = ibv_modify_qp(
      pair_.get(), &initial, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? OkStatus()
                    : ErrnoStatus(error, "ibv_modify_qp to INIT on " + rail_->port().device);
}

Status RdmaChannel::ConnectPair(const Hello& peer) {
  theirs_ = peer;
  if (peer.ethernet != mine_.ethernet) {
    return FailedPrecondition("one end is on Ethernet, the other on InfiniBand: this end is " +
                              Describe(mine_) + ", the peer " + Describe(peer));
  }
  const RdmaOptions& options = endpoint_.options_;
  const RdmaPort& port = rail_->port();
  eager_bytes_ = std::min(mine_.eager_bytes, peer.eager_bytes);
  credits_ = peer.credits;
  max_reads_ =
      std::min<uint32_t>({static_cast<uint32_t>(std::max(port.limits.max_qp_init_rd_atom, 0)),
                          peer.reads, kMaxChannelReads});
  segment_bytes_ = std::min(kMaxWriteBytes, port.state.max_msg_sz);

  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = MtuOfBytes(std::min(mine_.mtu_bytes, peer.mtu_bytes));
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.first_packet;
  receive.max_dest_rd_atomic = mine_.reads;
  receive.min_rnr_timer = kMinRnrTimer;
  receive.ah_attr.is_global = mine_.ethernet ? 1 : 0;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.sl = options.service_level;
  receive.ah_attr.port_num = port.port;
  std::memcpy(receive.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(port.GidFor(bootstrap_->LocalHost()).index);
  constexpr uint8_t kHopLimit = 64;  // As of IP packets.
  receive.ah_attr.grh.hop_limit = kHopLimit;
  receive.ah_attr.grh.traffic_class = options.traffic_class;
  int error = ibv_modify_qp(pair_.get(), &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    ibv_qp_attr send{};
    send.qp_state = IBV_QPS_RTS;
    send.timeout = options.timeout;
    send.retry_cnt = options.retry_count;
    send.rnr_retry = options.rnr_retry;
    send.sq_psn = first_packet_;
    send.max_rd_atomic = static_cast<uint8_t>(max_reads_);
    error = ibv_modify_qp(pair_.get(), &send,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) return OkStatus();
  return Unavailable("the queue pairs cannot be connected (" + std::string(std::strerror(error)) +
                     "): this end is " + Describe(mine_) + ", the peer " + Describe(peer) +
                     "; check that the GIDs are in one network");
}

// ---- The acceptor ----

void RdmaChannel::OnHello(const proto::WireHeader& header, ConstBytes bytes) {
  if (phase_ != Phase::kGreeting) return;  // Another one: nothing to do with it.
  if (header.kind != proto::MessageKind::kHello || bytes.empty()) {
    Refuse(header,
           InvalidArgument(peer_ + " sent a " + std::string(proto::MessageKindName(header.kind)) +
                           " of TCP to this port, which speaks RDMA: use rdma:// there"));
    return;
  }
  Result<Hello> theirs = ParseHello(bytes);
  if (!theirs) {
    Refuse(header, std::move(theirs).error());
    return;
  }
  Status status = MakePair(theirs->rail);
  if (status.ok()) {
    mine_ = MyHello();
    status = ConnectPair(*theirs);
  }
  if (!status.ok()) {
    Refuse(header, status);
    return;
  }
  phase_ = Phase::kProving;
  AnswerHello(header, mine_);
}

void RdmaChannel::Refuse(const proto::WireHeader& request, const Status& status) {
  ++endpoint_.stats_.protocol_errors;
  endpoint_.LogBadPeer(peer_, status);
  DestroyPair();
  Hello refusal;
  refusal.accepted = false;
  refusal.reason = status.message();
  phase_ = Phase::kRefused;
  AnswerHello(request, refusal);
}

void RdmaChannel::AnswerHello(const proto::WireHeader& request, const Hello& hello) {
  EncodeHello(hello, hello_out_);
  proto::WireHeader reply = request;
  reply.kind = proto::MessageKind::kReply;
  reply.flags = 0;
  reply.status = hello.accepted ? proto::ReplyStatus::kOk : proto::ReplyStatus::kMalformed;
  reply.payload_bytes = kHelloBytes;
  const Status sent = bootstrap_->Reply(reply, hello_out_);
  if (!sent.ok()) Fail(sent);
}

// ---- The connector ----

void RdmaChannel::OnHelloAnswer(const proto::WireHeader& header, ConstBytes bytes) {
  if (phase_ != Phase::kGreeting) return;
  if (bytes.empty()) {
    Fail(Unimplemented("cannot connect to " + peer_ +
                       ": that port speaks TCP and answered RDMA's "
                       "hello with '" +
                       std::string(proto::ReplyStatusName(header.status)) + "'; use tcp:// there"));
    return;
  }
  Result<Hello> theirs = ParseHello(bytes);
  Status status = theirs ? OkStatus() : std::move(theirs).error();
  if (status.ok() && !theirs->accepted) {
    status = FailedPrecondition("refused: " + theirs->reason);
  }
  if (status.ok()) status = ConnectPair(*theirs);
  if (!status.ok()) {
    Fail(Status(status.code(), "cannot connect to " + peer_ + ": " + status.message()));
    return;
  }
  phase_ = Phase::kProving;
  ready_to_send_ = true;
  endpoint_.Activate(*this);
}

// ---- Both ----

void RdmaChannel::OnReady() {
  if (phase_ != Phase::kProving) {
    FailProtocol(InvalidArgument(peer_ + " opened its channel twice"));
    return;
  }
  if (role_ == Role::kAcceptor) ready_to_send_ = true;
  BecomeOpen();
}

void RdmaChannel::BecomeOpen() {
  CreateTables();
  phase_ = Phase::kOpen;
  told_ = true;
  ++endpoint_.events_;
  endpoint_.Activate(*this);
  endpoint_.handler_->OnOpened(*this);
}

void RdmaChannel::OnBootstrapClosed(const Status& status) {
  bootstrap_ = nullptr;
  if (half_open() && phase_ != Phase::kProving) {
    Shut();  // A stranger; the bootstrap has logged what there was to say.
  } else if (phase_ == Phase::kConnecting || phase_ == Phase::kGreeting) {
    Fail(Status(status.code(), "cannot connect to " + peer_ + ": " + status.message()));
  } else if (phase_ == Phase::kOpen || phase_ == Phase::kProving) {
    // What it sent before it left may be here already.
    endpoint_.HandleCompletions();
    if (phase_ < Phase::kBroken) Fail(Unavailable(peer_ + " left: " + status.message()));
  }
}

}  // namespace slackline::transport
