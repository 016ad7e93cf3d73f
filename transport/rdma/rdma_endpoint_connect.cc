// How channels come to be: the bootstrap's connections and which device a channel goes over.
#include <glog/logging.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/address.h"
#include "transport/rdma/rdma_endpoint.h"

namespace slackline::transport {
namespace {

constexpr std::string_view kScheme = "rdma";
// What the bootstrap moves are hellos.
constexpr uint64_t kMaxBootstrapRegionBytes = 1 << 20;
constexpr size_t kBootstrapPassBytes = 4096;

std::string BootstrapAddress(Address address) {
  address.scheme = "tcp";
  return address.ToString();
}

std::string OwnAddress(std::string_view bootstrap) {
  return std::string(kScheme) + std::string(bootstrap.substr(bootstrap.find("://")));
}

}  // namespace

Result<std::unique_ptr<Endpoint>> RdmaEndpoint::Create(const RdmaOptions& options) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckRdmaOptions(options));
  SLACKLINE_ASSIGN_OR_RETURN(std::vector<RdmaPort> ports, OpenPorts(options));
  TcpOptions tcp;
  tcp.max_region_bytes = kMaxBootstrapRegionBytes;
  tcp.pass_bytes = kBootstrapPassBytes;
  tcp.first_header_timeout_ns = options.handshake_timeout_ns;
  tcp.stall_timeout_ns = options.handshake_timeout_ns;
  SLACKLINE_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> bootstrap, TcpEndpoint::Create(tcp));
  std::unique_ptr<TcpEndpoint> owned(static_cast<TcpEndpoint*>(bootstrap.release()));
  Fd news(epoll_create1(EPOLL_CLOEXEC));
  if (news.get() < 0) return Err(ErrnoStatus(errno, "epoll_create1"));
  SLACKLINE_RETURN_ERR_IF_ERROR(owned->Watch(news.get()));
  return std::unique_ptr<Endpoint>(
      new RdmaEndpoint(options, std::move(ports), std::move(owned), std::move(news)));
}

Result<std::string> RdmaEndpoint::Listen(std::string_view text) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  DCHECK(OnOwnerThread());
  SLACKLINE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, kScheme));
  SLACKLINE_ASSIGN_OR_RETURN(const std::string bound,
                             bootstrap_->Listen(BootstrapAddress(address)));
  return OwnAddress(bound);
}

Result<Channel*> RdmaEndpoint::Connect(std::string_view text, TimeNs timeout_ns) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  DCHECK(OnOwnerThread());
  SLACKLINE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, kScheme));
  if (channels_.size() == kMaxRdmaChannels) {
    return Err(ResourceExhausted(std::to_string(kMaxRdmaChannels) +
                                 " channels are open at this endpoint"));
  }
  SLACKLINE_ASSIGN_OR_RETURN(Channel * bootstrap,
                             bootstrap_->Connect(BootstrapAddress(address), timeout_ns));
  now_ns_ = time_.NowNs();
  return &AddChannel(RdmaChannel::Role::kConnector, address.ToString(),
                     static_cast<TcpChannel*>(bootstrap), std::max<TimeNs>(timeout_ns, 0));
}

RdmaChannel& RdmaEndpoint::AddChannel(RdmaChannel::Role role, std::string peer,
                                      TcpChannel* bootstrap, TimeNs timeout_ns) {
  // The caller has seen that one is free.
  const auto free = std::find(by_id_.begin(), by_id_.end(), nullptr);
  constexpr uint32_t kMaxGenerations = (1u << 31) / kMaxRdmaChannels;
  generation_ = (generation_ + 1) % kMaxGenerations;
  const auto id = static_cast<uint32_t>(generation_ * kMaxRdmaChannels +
                                        static_cast<size_t>(free - by_id_.begin()));
  channels_.push_back(std::make_unique<RdmaChannel>(*this, role, id, std::move(peer), bootstrap,
                                                    now_ns_ + timeout_ns));
  RdmaChannel& channel = *channels_.back();
  channel.slot = channels_.size() - 1;
  *free = &channel;
  bootstrap->set_context(&channel);
  next_deadline_ns_ = std::min(next_deadline_ns_, channel.DeadlineNs());
  return channel;
}

// ---- The bootstrap's events ----

void RdmaEndpoint::OnOpened(Channel& bootstrap) {
  if (bootstrap.context() != nullptr) {
    static_cast<RdmaChannel*>(bootstrap.context())->SayHello();
    return;
  }
  const auto half_open = std::count_if(channels_.begin(), channels_.end(),
                                       [](const auto& channel) { return channel->half_open(); });
  const std::string peer = OwnAddress(bootstrap.peer());
  if (channels_.size() == kMaxRdmaChannels || static_cast<size_t>(half_open) >= kMaxRdmaHalfOpen) {
    LogBadPeer(peer, ResourceExhausted(
                         peer + " is one connection too many: " + std::to_string(channels_.size()) +
                         " are open, " + std::to_string(half_open) + " of them not agreed yet"));
    bootstrap.Close();
    return;
  }
  AddChannel(RdmaChannel::Role::kAcceptor, peer, static_cast<TcpChannel*>(&bootstrap),
             options_.handshake_timeout_ns);
}

void RdmaEndpoint::OnClosed(Channel& bootstrap, const Status& status) {
  auto* channel = static_cast<RdmaChannel*>(bootstrap.context());
  if (channel != nullptr) channel->OnBootstrapClosed(status);
}

Landing RdmaEndpoint::OnRequestArriving(Channel& bootstrap, const proto::WireHeader& header) {
  auto* channel = static_cast<RdmaChannel*>(bootstrap.context());
  const bool fits = header.kind == proto::MessageKind::kHello &&
                    header.payload_bytes <= RdmaChannel::kMaxHelloBytes;
  if (channel == nullptr || !fits) return Landing::Drain();
  return Landing::Into(channel->HelloLanding(header.payload_bytes));
}

void RdmaEndpoint::OnRequest(Channel& bootstrap, const proto::WireHeader& header,
                             MutableBytes payload) {
  auto* channel = static_cast<RdmaChannel*>(bootstrap.context());
  if (channel != nullptr) channel->OnHello(header, payload);
}

void RdmaEndpoint::OnReply(Channel& bootstrap, const proto::WireHeader& header,
                           MutableBytes payload) {
  auto* channel = static_cast<RdmaChannel*>(bootstrap.context());
  if (channel != nullptr) channel->OnHelloAnswer(header, payload);
}

// ---- For channels ----

Result<Rail*> RdmaEndpoint::ChooseRail(std::string_view local_host, uint32_t hint) {
  Rail* rail = nullptr;
  if (options_.devices.empty()) {
    // The device that the way to the peer goes over; on the way to this host itself, the nearest.
    const auto found = std::find_if(rails_.begin(), rails_.end(), [&](const auto& candidate) {
      return candidate->port().HasAddress(local_host);
    });
    rail = found == rails_.end() ? rails_.front().get() : found->get();
  } else {
    // Both ends list their devices in the order in which they belong together.
    const size_t wanted = hint == UINT32_MAX ? next_rail_++ : hint;
    rail = rails_[wanted % rails_.size()].get();
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(StartRail(*rail));
  for (RdmaRegion* region : regions_) SLACKLINE_RETURN_ERR_IF_ERROR(region->RegisterOn(*rail));
  return rail;
}

Status RdmaEndpoint::StartRail(Rail& rail) {
  if (rail.started()) return OkStatus();
  SLACKLINE_RETURN_IF_ERROR(rail.Start());
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(news_.get(), EPOLL_CTL_ADD, rail.event_descriptor(), &event) == 0) {
    return OkStatus();
  }
  return ErrnoStatus(errno, "waiting for completions of " + rail.port().device);
}

uint32_t RdmaEndpoint::NextPacketNumber() {
  return static_cast<uint32_t>(random_.Below(uint64_t{1} << 24));
}

void RdmaEndpoint::NotePair(RdmaChannel& channel) {
  by_queue_pair_[uint64_t{channel.rail()->index()} << 32 | channel.queue_pair_number()] = &channel;
}

void RdmaEndpoint::ForgetPair(const RdmaChannel& channel) {
  by_queue_pair_.erase(uint64_t{channel.rail()->index()} << 32 | channel.queue_pair_number());
}

}  // namespace slackline::transport
