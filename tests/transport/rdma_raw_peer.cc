#include "tests/transport/rdma_raw_peer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "transport/mapped_region.h"

namespace slackline::transport {
namespace {

constexpr uint32_t kLocalBytes = 1 << 20;
constexpr uint32_t kFirstPacket = 77;

}  // namespace

RawPeer::RawPeer() {
  tcp_.reset(static_cast<TcpEndpoint*>(TcpEndpoint::Create({}).value().release()));
  tcp_->set_handler(this);
  const std::string bound = tcp_->Listen("tcp://127.0.0.1:0").value();
  address_ = "rdma" + bound.substr(bound.find("://"));
  rail_ = std::make_unique<Rail>(std::move(OpenPorts({}).value().front()), 0, RdmaOptions{});
  EXPECT_TRUE(rail_->Start().ok());
  unit_ = rail_->TakeUnit().value();
  memory_ = MappedRegion::Create(kLocalBytes, kLocalBytes, &region_bytes_).value();
  registration_ = rail_->Register(memory_->bytes(), /*granted=*/false).value();
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = rail_->completions();
  attributes.srq = rail_->receives();
  attributes.cap.max_send_wr = 16;
  attributes.cap.max_send_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  pair_.reset(ibv_create_qp(rail_->domain(), &attributes));
}

RawPeer::~RawPeer() {
  pair_.reset();
  registration_.reset();
}

Landing RawPeer::OnRequestArriving(Channel&, const proto::WireHeader&) {
  return Landing::Into(hello_in_);
}

void RawPeer::OnRequest(Channel& bootstrap, const proto::WireHeader& header, MutableBytes) {
  Connect(ParseHello(hello_in_).value());
  const RdmaGid& gid = rail_->port().GidFor("127.0.0.1");
  Hello mine;
  mine.queue_pair = pair_->qp_num;
  mine.first_packet = kFirstPacket;
  std::memcpy(mine.gid.data(), gid.gid.raw, mine.gid.size());
  mine.reads = 4;
  mine.mtu_bytes = 1024;
  mine.credits = kReceiveCredits;
  EncodeHello(mine, hello_out_);
  proto::WireHeader reply = header;
  reply.kind = proto::MessageKind::kReply;
  EXPECT_TRUE(bootstrap.Reply(reply, hello_out_).ok());
}

void RawPeer::Connect(const Hello& theirs) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = rail_->port().port;
  EXPECT_EQ(ibv_modify_qp(pair_.get(), &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            0);
  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = theirs.queue_pair;
  attributes.rq_psn = theirs.first_packet;
  attributes.max_dest_rd_atomic = 4;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = rail_->port().port;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, theirs.gid.data(), theirs.gid.size());
  attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail_->port().GidFor("127.0.0.1").index);
  attributes.ah_attr.grh.hop_limit = 64;
  EXPECT_EQ(ibv_modify_qp(pair_.get(), &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 18;
  attributes.retry_cnt = 7;
  attributes.rnr_retry = 7;
  attributes.sq_psn = kFirstPacket;
  attributes.max_rd_atomic = 4;
  EXPECT_EQ(ibv_modify_qp(pair_.get(), &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
}

void RawPeer::Poll() {
  tcp_->Poll(0);
  ibv_wc completion;
  while (rail_->NextCompletion(&completion)) {
    if (completion.wr_id == kAccess) outcome_ = completion.status;
    if ((completion.wr_id & kReceiveBit) == 0 || completion.status != IBV_WC_SUCCESS) continue;
    const auto buffer = static_cast<uint32_t>(completion.wr_id);
    const ConstBytes bytes = rail_->Received(buffer, completion.byte_len);
    const Frame frame = ParseFrame(bytes).value();
    if (frame.type == Frame::Type::kReady) {
      Send({.type = Frame::Type::kReady,
            .payload_kind = {},
            .credits = 0,
            .payload = {},
            .landing = {}});
    } else if (frame.type == Frame::Type::kMessage) {
      messages_.push_back(
          {frame,
           proto::ParseWireHeader(bytes.subspan<kFrameBytes, proto::kWireHeaderBytes>()).value()});
    }
    rail_->Recycle(buffer);
  }
  rail_->PostRecycled();
}

void RawPeer::Send(const Frame& frame, const proto::WireHeader& header) {
  const MutableBytes stage = rail_->SendSlot(unit_, staged_++ % kMaxPostedMessages);
  EncodeFrame(frame, stage.first<kFrameBytes>());
  proto::EncodeWireHeader(header, stage.subspan<kFrameBytes, proto::kWireHeaderBytes>());
  const bool whole = frame.type == Frame::Type::kMessage;
  ibv_sge piece{.addr = reinterpret_cast<uint64_t>(stage.data()),
                .length = static_cast<uint32_t>(whole ? kPrefixBytes : kFrameBytes),
                .lkey = rail_->SendKey(unit_)};
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair_.get(), &request, &bad), 0);
}

void RawPeer::Access(ibv_wr_opcode opcode, uint64_t address, uint32_t key, uint32_t bytes) {
  outcome_.reset();
  ibv_sge piece{.addr = reinterpret_cast<uint64_t>(local().data()),
                .length = bytes,
                .lkey = registration_->lkey};
  ibv_send_wr request{};
  request.wr_id = kAccess;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = key;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair_.get(), &request, &bad), 0);
}

void RawPeer::Leave() {
  if (bootstrap_ != nullptr) bootstrap_->Close();
  bootstrap_ = nullptr;
}

}  // namespace slackline::transport
