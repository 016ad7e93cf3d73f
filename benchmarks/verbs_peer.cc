#include "benchmarks/verbs_peer.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "transport/mapped_region.h"
#include "transport/rdma/work_list.h"

namespace slackline::bench {
namespace {

using transport::WorkList;

// Requests that leave with one doorbell and report with one completion.
constexpr size_t kListSize = 16;
constexpr int kReceiveDepth = 512;
// A work request's id is the number of requests that its completion stands for.

ibv_wr_opcode Opcode(VerbsOp op) {
  switch (op) {
    case VerbsOp::kWrite:
      return IBV_WR_RDMA_WRITE;
    case VerbsOp::kRead:
      return IBV_WR_RDMA_READ;
    case VerbsOp::kSend:
      return IBV_WR_SEND;
  }
  return IBV_WR_SEND;
}

}  // namespace

std::string VerbsCard::ToLine() const {
  std::ostringstream line;
  line << "slackline-verbs " << queue_pair << ' ' << transport::GidText(gid) << ' ' << lid << ' '
       << mtu_bytes << ' ' << address << ' ' << key << ' ' << bytes;
  return line.str();
}

Result<VerbsCard> VerbsCard::Parse(const std::string& line) {
  std::istringstream words(line);
  std::string magic, gid;
  VerbsCard card;
  words >> magic >> card.queue_pair >> gid >> card.lid >> card.mtu_bytes >> card.address >>
      card.key >> card.bytes;
  if (!words || magic != "slackline-verbs" || inet_pton(AF_INET6, gid.c_str(), card.gid.raw) != 1) {
    return Err(
        InvalidArgument("expected the other end's queue pair, found '" + line.substr(0, 80) + "'"));
  }
  return card;
}

Result<std::unique_ptr<VerbsEnd>> VerbsEnd::Create(const transport::RdmaOptions& options,
                                                   std::string_view local_host, size_t bytes) {
  std::unique_ptr<VerbsEnd> end(new VerbsEnd);
  end->options_ = options;
  SLACKLINE_ASSIGN_OR_RETURN(std::vector<transport::RdmaPort> ports, transport::OpenPorts(options));
  const auto nearest = std::ranges::find_if(
      ports, [&](const transport::RdmaPort& port) { return port.HasAddress(local_host); });
  end->port_ = std::move(nearest == ports.end() ? ports.front() : *nearest);
  end->gid_index_ = end->port_.GidFor(local_host).index;
  const std::string where = " on " + end->port_.device;

  end->domain_.reset(ibv_alloc_pd(end->port_.context.get()));
  if (!end->domain_) return Err(ErrnoStatus(errno, "ibv_alloc_pd" + where));
  SLACKLINE_ASSIGN_OR_RETURN(end->memory_,
                             transport::MappedRegion::Create(bytes, bytes, &end->memory_bytes_));
  const MutableBytes memory = end->memory_->bytes();
  end->registration_.reset(
      ibv_reg_mr(end->domain_.get(), memory.data(), memory.size(),
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (!end->registration_) return Err(ErrnoStatus(errno, "ibv_reg_mr" + where));
  end->completions_.reset(ibv_create_cq(
      end->port_.context.get(), static_cast<int>(kMaxWindow) + kReceiveDepth, nullptr, nullptr, 0));
  if (!end->completions_) return Err(ErrnoStatus(errno, "ibv_create_cq" + where));

  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = end->completions_.get();
  attributes.cap.max_send_wr = kMaxWindow;
  attributes.cap.max_recv_wr = kReceiveDepth;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  end->pair_.reset(ibv_create_qp(end->domain_.get(), &attributes));
  if (!end->pair_) return Err(ErrnoStatus(errno, "ibv_create_qp" + where));
  ibv_qp_attr initial{};
  initial.qp_state = IBV_QPS_INIT;
  initial.port_num = end->port_.port;
  initial.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(end->pair_.get(), &initial,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return Err(ErrnoStatus(error, "ibv_modify_qp to INIT" + where));
  SLACKLINE_RETURN_ERR_IF_ERROR(end->PostReceives(kReceiveDepth));
  return end;
}

VerbsCard VerbsEnd::card() const {
  VerbsCard card;
  card.queue_pair = pair_->qp_num;
  const auto gid = std::ranges::find(port_.gids, gid_index_, &transport::RdmaGid::index);
  card.gid = gid->gid;
  card.lid = port_.state.lid;
  card.mtu_bytes =
      options_.mtu_bytes != 0 ? options_.mtu_bytes : transport::MtuBytes(port_.state.active_mtu);
  card.address = reinterpret_cast<uint64_t>(memory_->bytes().data());
  card.key = registration_->rkey;
  card.bytes = memory_->bytes().size();
  return card;
}

Status VerbsEnd::Join(const VerbsCard& peer) {
  peer_ = peer;
  constexpr uint8_t kReads = 16, kHopLimit = 64, kMinRnrTimer = 1;  // 1: 10 us.
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = transport::MtuOfBytes(std::min(card().mtu_bytes, peer.mtu_bytes));
  receive.dest_qp_num = peer.queue_pair;
  receive.max_dest_rd_atomic = kReads;
  receive.min_rnr_timer = kMinRnrTimer;
  receive.ah_attr.is_global = port_.ethernet() ? 1 : 0;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.sl = options_.service_level;
  receive.ah_attr.port_num = port_.port;
  receive.ah_attr.grh = {.dgid = peer.gid,
                         .flow_label = 0,
                         .sgid_index = static_cast<uint8_t>(gid_index_),
                         .hop_limit = kHopLimit,
                         .traffic_class = options_.traffic_class};
  int error = ibv_modify_qp(pair_.get(), &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return ErrnoStatus(error, "ibv_modify_qp to RTR on " + port_.device);
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = options_.timeout;
  send.retry_cnt = options_.retry_count;
  send.rnr_retry = options_.rnr_retry;
  send.max_rd_atomic = kReads;
  error = ibv_modify_qp(pair_.get(), &send,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? OkStatus() : ErrnoStatus(error, "ibv_modify_qp to RTS on " + port_.device);
}

Status VerbsEnd::Post(const Load& load, size_t count) {
  WorkList list;
  for (size_t i = 0; i < count; ++i) {
    ibv_send_wr& request = list.Add(Opcode(load.op));
    WorkList::AddPiece(request, memory_->bytes().data(), load.payload_bytes, registration_->lkey);
    request.wr.rdma.remote_addr = peer_.address;
    request.wr.rdma.rkey = peer_.key;
  }
  list.back().wr_id = count;
  list.back().send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_.get(), list.head(), &bad);
  return error == 0 ? OkStatus() : ErrnoStatus(error, "ibv_post_send");
}

Status VerbsEnd::PostReceives(size_t count) {
  const MutableBytes memory = memory_->bytes();
  ibv_sge piece{.addr = reinterpret_cast<uint64_t>(memory.data()),
                .length = static_cast<uint32_t>(memory.size()),
                .lkey = registration_->lkey};
  ibv_recv_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  for (size_t i = 0; i < count; ++i) {
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(pair_.get(), &request, &bad); error != 0) {
      return ErrnoStatus(error, "ibv_post_recv");
    }
  }
  return OkStatus();
}

Result<size_t> VerbsEnd::Completed() {
  std::array<ibv_wc, 32> completions;
  const int found =
      ibv_poll_cq(completions_.get(), static_cast<int>(completions.size()), completions.data());
  if (found < 0) return Err(Internal("ibv_poll_cq failed"));
  size_t requests = 0;
  for (int i = 0; i < found; ++i) {
    const ibv_wc& completion = completions[static_cast<size_t>(i)];
    if (completion.status != IBV_WC_SUCCESS) {
      return Err(Unavailable("a work request failed: " +
                             std::string(ibv_wc_status_str(completion.status))));
    }
    requests += completion.opcode == IBV_WC_RECV ? 1 : completion.wr_id;
  }
  return requests;
}

Result<VerbsEnd::Sample> VerbsEnd::Run(const Load& load, TimeNs duration_ns) {
  if (load.payload_bytes > std::min<uint64_t>(memory_->bytes().size(), peer_.bytes)) {
    return Err(InvalidArgument(
        "the ends have memory for payloads of " +
        std::to_string(std::min<uint64_t>(memory_->bytes().size(), peer_.bytes)) + " bytes"));
  }
  const SteadyTimeSource time;
  const size_t window = std::clamp<size_t>(load.window, 1, kMaxWindow);
  // Two lists at least: the device is never without work while one is reported.
  const size_t list_size = std::clamp<size_t>(window / 2, 1, kListSize);
  std::array<TimeNs, kMaxWindow> posted_ns{};  // By list, in a ring.
  uint64_t lists_posted = 0, lists_done = 0;
  size_t in_flight = 0;
  Sample sample;
  const TimeNs begin_ns = time.NowNs(), end_ns = begin_ns + duration_ns;
  TimeNs now_ns = begin_ns;
  while (now_ns < end_ns || in_flight > 0) {
    while (now_ns < end_ns && in_flight + list_size <= window) {
      posted_ns[lists_posted++ % kMaxWindow] = now_ns;
      SLACKLINE_RETURN_ERR_IF_ERROR(Post(load, list_size));
      in_flight += list_size;
    }
    SLACKLINE_ASSIGN_OR_RETURN(const size_t completed, Completed());
    now_ns = time.NowNs();
    in_flight -= completed;
    sample.requests += completed;
    for (size_t lists = completed / list_size; lists > 0; --lists) {
      sample.latencies_us.push_back(
          static_cast<double>(now_ns - posted_ns[lists_done++ % kMaxWindow]) / 1e3);
    }
  }
  sample.seconds = static_cast<double>(now_ns - begin_ns) / 1e9;
  return sample;
}

Status VerbsEnd::Receive(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(const size_t received, Completed());
    SLACKLINE_RETURN_IF_ERROR(PostReceives(received));
  }
  return OkStatus();
}

}  // namespace slackline::bench
