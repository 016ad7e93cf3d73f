// How channels come to be: listening and accepting, looking up names and connecting.
#include <glog/logging.h>

#include <boost/asio/ip/address.hpp>
#include <cerrno>

#include "transport/tcp/tcp_endpoint.h"

namespace slackline::transport {
namespace {

using SocketAddress = TcpChannel::SocketAddress;

constexpr std::string_view kScheme = "tcp";
// Connections that the kernel holds for us between two Polls.
constexpr int kListenBacklog = 512;
// Addresses of one name that are tried.
constexpr size_t kMaxCandidates = 16;

std::string Describe(const SocketAddress& address) {
  return Address{
      .scheme = std::string(kScheme), .host = address.address().to_string(), .port = address.port()}
      .ToString();
}

}  // namespace

// ---- Listening ----

Result<std::string> TcpEndpoint::Listen(std::string_view text) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  DCHECK(OnOwnerThread());
  SLACKLINE_ASSIGN_OR_RETURN(Address address, ParseAddress(text, kScheme));
  if (listeners_.size() == kMaxTcpListeners) {
    return Err(ResourceExhausted("an endpoint listens at " + std::to_string(kMaxTcpListeners) +
                                 " addresses at most"));
  }
  auto listener = std::make_unique<Listener>(io_);
  SLACKLINE_RETURN_ERR_IF_ERROR(OpenListener(*listener, address));
  boost::system::error_code error;
  address.port = listener->acceptor.local_endpoint(error).port();
  if (error) return Err(Internal("local_endpoint: " + error.message()));
  StartAccepting(*listener);
  listeners_.push_back(std::move(listener));
  return address.ToString();
}

Status TcpEndpoint::OpenListener(Listener& listener, const Address& address) {
  boost::system::error_code error;
  SocketAddress at(boost::asio::ip::make_address(address.host, error), address.port);
  if (error) {
    const auto found = resolver_.resolve(address.host, std::to_string(address.port), error);
    if (error || found.empty()) {
      return InvalidArgument("cannot listen at " + address.ToString() + ": '" + address.host +
                             "' is not a host's name or address (" + error.message() + ")");
    }
    at = found.begin()->endpoint();
  }
  listener.acceptor.open(at.protocol(), error);
  if (error) return ErrnoStatus(error.value(), "socket");
  // The next run may take the port while connections of the last one fade out in TIME_WAIT.
  listener.acceptor.set_option(boost::asio::socket_base::reuse_address(true), error);
  if (error) return ErrnoStatus(error.value(), "SO_REUSEADDR");
  SLACKLINE_RETURN_IF_ERROR(SetBufferSizes(listener.acceptor.native_handle(), options_.socket));
  listener.acceptor.bind(at, error);
  if (!error) listener.acceptor.listen(kListenBacklog, error);
  if (!error) listener.acceptor.non_blocking(true, error);
  if (!error) return OkStatus();
  if (error.value() == EADDRNOTAVAIL) {
    return InvalidArgument("cannot listen at " + address.ToString() +
                           ": this machine does not have the address");
  }
  return ErrnoStatus(error.value(), "cannot listen at " + address.ToString());
}

void TcpEndpoint::StartAccepting(Listener& listener) {
  listener.waiting = true;
  listener.acceptor.async_accept(
      listener.socket,
      InSlot(listener.slot, [this, &listener](const boost::system::error_code& error) {
        listener.waiting = false;
        OnAccepted(listener, error.value());
      }));
}

void TcpEndpoint::OnAccepted(Listener& listener, int error) {
  if (!listener.acceptor.is_open()) return;
  if (error != 0) {
    // Out of descriptors, mostly. The connection stays in the backlog; accepting goes on with the
    // next sweep of deadlines.
    LOG_EVERY_N(ERROR, 100) << "cannot accept a connection: " << std::strerror(error);
    constexpr TimeNs kAcceptRetryNs = 100 * kNsPerMs;
    NoteDeadline(now_ns_ + kAcceptRetryNs);
    return;
  }
  TcpSocket socket = std::move(listener.socket);
  listener.socket = TcpSocket(io_);
  StartAccepting(listener);

  boost::system::error_code gone;
  const SocketAddress remote = socket.remote_endpoint(gone);
  if (gone) return;  // It left before we looked; closing is all there is to do.
  std::string peer = Describe(remote);
  if (channels_.size() == kMaxTcpChannels) {
    LogBadPeer(peer, ResourceExhausted(peer + " is one connection more than " +
                                       std::to_string(kMaxTcpChannels)));
    return;
  }
  TcpChannel& channel = AddChannel(TcpChannel::Role::kAcceptor, std::move(peer));
  if (!channel.Adopt(std::move(socket)).ok()) {
    channel.Shut();
    return;
  }
  ++events_;
  handler_->OnOpened(channel);
}

// ---- Connecting ----

Result<Channel*> TcpEndpoint::Connect(std::string_view text, TimeNs timeout_ns) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  DCHECK(OnOwnerThread());
  SLACKLINE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, kScheme));
  if (address.port == 0) {
    return Err(InvalidArgument("cannot connect to port 0 of " + address.host));
  }
  if (channels_.size() == kMaxTcpChannels) {
    return Err(
        ResourceExhausted(std::to_string(kMaxTcpChannels) + " channels are open at this endpoint"));
  }
  now_ns_ = time_.NowNs();
  TcpChannel& channel = AddChannel(TcpChannel::Role::kConnector, address.ToString());
  channel.StartConnecting(now_ns_ + std::max<TimeNs>(timeout_ns, 0), timeout_ns);
  Resolve(channel, address);
  return &channel;
}

void TcpEndpoint::Resolve(TcpChannel& channel, const Address& address) {
  boost::system::error_code error;
  const auto numeric = boost::asio::ip::make_address(address.host, error);
  // Posted, since callbacks run inside Poll only; found by id, since the channel may be gone then.
  if (!error) {
    boost::asio::post(io_, [this, id = channel.id(), at = SocketAddress(numeric, address.port)] {
      if (TcpChannel* found = FindChannel(id)) found->ConnectTo({at});
    });
    return;
  }
  resolver_.async_resolve(
      address.host, std::to_string(address.port),
      [this, id = channel.id()](const boost::system::error_code& result,
                                const boost::asio::ip::tcp::resolver::results_type& entries) {
        TcpChannel* found = FindChannel(id);
        if (found == nullptr) return;
        if (result) {
          found->Fail(Unavailable("cannot connect to " + std::string(found->peer()) + ": " +
                                  result.message()));
          return;
        }
        std::vector<SocketAddress> candidates;
        for (const auto& entry : entries) {
          if (candidates.size() < kMaxCandidates) candidates.push_back(entry.endpoint());
        }
        found->ConnectTo(std::move(candidates));
      });
}

TcpChannel& TcpEndpoint::AddChannel(TcpChannel::Role role, std::string peer) {
  channels_.push_back(
      std::make_unique<TcpChannel>(*this, role, next_channel_id_++, std::move(peer)));
  channels_.back()->slot = channels_.size() - 1;
  return *channels_.back();
}

TcpChannel* TcpEndpoint::FindChannel(uint64_t id) {
  for (const auto& channel : channels_) {
    if (channel->id() == id) return channel.get();
  }
  return nullptr;
}

}  // namespace slackline::transport
