#include <glog/logging.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "transport/address.h"
#include "transport/control/control_channel.h"
#include "transport/control/control_link.h"
#include "transport/peer_log.h"

namespace slackline::transport {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

constexpr int kListenBacklog = 512;
// After a failed accept (out of descriptors) the next try waits this long.
constexpr TimeNs kAcceptRetryNs = 100 * kNsPerMs;

class ControlServerImpl final : public ControlServer {
 public:
  ControlServerImpl(TimeNs tick_interval_ns, Callbacks callbacks)
      : tick_interval_ns_(tick_interval_ns),
        callbacks_(std::move(callbacks)),
        acceptor_(io_),
        tick_timer_(io_),
        accept_timer_(io_) {}
  ~ControlServerImpl() override {
    for (auto& [id, link] : links_) link->CloseNow();
  }

  Status Listen(const Address& address);

  std::string address() const override { return address_.ToString(); }
  void Send(ConnectionId connection, const control::Envelope& message) override;
  void Close(ConnectionId connection) override;
  void Run() override;
  void Stop() override {
    asio::post(io_, [this] { BeginStop(); });
  }

 private:
  void Accept();
  void OnAccepted(Tcp::socket socket);
  void OnLinkClosed(ConnectionId id, const std::string& peer, const Status& status);
  void Tick();
  void BeginStop();
  void LinkGone();

  const TimeNs tick_interval_ns_;
  const Callbacks callbacks_;
  SteadyTimeSource time_;
  Address address_;
  PeerLog peer_log_;

  asio::io_context io_{1};
  Tcp::acceptor acceptor_;
  asio::steady_timer tick_timer_, accept_timer_;
  std::unordered_map<ConnectionId, std::shared_ptr<ControlLink>> links_;
  ConnectionId next_id_ = 1;
  size_t lingering_ = 0;  // Closed by us, not gone yet.
  bool stopping_ = false;
};

Status ControlServerImpl::Listen(const Address& address) {
  boost::system::error_code error;
  Tcp::endpoint at(asio::ip::make_address(address.host, error), address.port);
  if (error) {
    // Start-up: the look-up may block.
    const auto found =
        Tcp::resolver(io_).resolve(address.host, std::to_string(address.port), error);
    if (error || found.empty()) {
      return InvalidArgument("cannot listen at " + address.ToString() + ": '" + address.host +
                             "' is not a host's name or address (" + error.message() + ")");
    }
    at = found.begin()->endpoint();
  }
  acceptor_.open(at.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(at, error);
  if (!error) acceptor_.listen(kListenBacklog, error);
  if (error.value() == EADDRNOTAVAIL) {
    return InvalidArgument("cannot listen at " + address.ToString() +
                           ": this machine does not have the address");
  }
  if (error) return ErrnoStatus(error.value(), "cannot listen at " + address.ToString());
  address_ = {.scheme = {}, .host = address.host, .port = acceptor_.local_endpoint(error).port()};
  if (error) return ErrnoStatus(error.value(), "local_endpoint");
  return OkStatus();
}

void ControlServerImpl::Run() {
  Accept();
  Tick();
  io_.run();
}

void ControlServerImpl::Accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, Tcp::socket socket) {
    if (stopping_) return;
    if (!error) {
      OnAccepted(std::move(socket));
      return Accept();
    }
    LOG_EVERY_N(ERROR, 100) << "cannot accept a control connection: " << error.message();
    accept_timer_.expires_after(std::chrono::nanoseconds(kAcceptRetryNs));
    accept_timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped && !stopping_) Accept();
    });
  });
}

void ControlServerImpl::OnAccepted(Tcp::socket socket) {
  boost::system::error_code error;
  const Tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return;  // It left already.
  const std::string peer =
      Address{.scheme = {}, .host = remote.address().to_string(), .port = remote.port()}.ToString();
  if (links_.size() + lingering_ >= kMaxControlConnections) {
    LOG_EVERY_N(WARNING, 100) << "refused control connection " << peer << ": "
                              << kMaxControlConnections << " are open";
    return;
  }
  const ConnectionId id = next_id_++;
  auto link = std::make_shared<ControlLink>(
      std::move(socket),
      ControlLink::Callbacks{
          .on_message =
              [this, id](const control::Envelope& message) { callbacks_.on_message(id, message); },
          .on_closed = [this, id, peer](const Status& status) { OnLinkClosed(id, peer, status); }});
  if (!link->Start(kControlFirstFrameNs).ok()) return link->CloseNow();
  links_.emplace(id, std::move(link));
  if (callbacks_.on_opened) callbacks_.on_opened(id, peer);
}

void ControlServerImpl::OnLinkClosed(ConnectionId id, const std::string& peer,
                                     const Status& status) {
  links_.erase(id);
  uint64_t suppressed = 0;
  const std::string_view host = std::string_view(peer).substr(0, peer.rfind(':'));
  // A peer that leaves is its owner's business; what breaks the protocol is told here.
  if (status.code() != StatusCode::kUnavailable &&
      peer_log_.ShouldLog(host, time_.NowNs(), &suppressed)) {
    LOG(WARNING) << "closed control connection " << peer << ": " << status << " (" << suppressed
                 << " more from this peer since the last report)";
  }
  if (callbacks_.on_closed) callbacks_.on_closed(id, status);
}

void ControlServerImpl::Send(ConnectionId connection, const control::Envelope& message) {
  const auto found = links_.find(connection);
  if (found == links_.end()) return;
  Result<ControlFrame> frame = EncodeControlFrame(message);
  if (!frame) {
    LOG(ERROR) << "a control message was not sent: " << frame.error();
    return;
  }
  found->second->Send(std::move(*frame));
}

void ControlServerImpl::Close(ConnectionId connection) {
  const auto found = links_.find(connection);
  if (found == links_.end()) return;
  const std::shared_ptr<ControlLink> link = std::move(found->second);
  links_.erase(found);
  ++lingering_;
  link->CloseAfterSending([this] { LinkGone(); });
}

void ControlServerImpl::LinkGone() {
  --lingering_;
  if (stopping_ && lingering_ == 0) io_.stop();
}

void ControlServerImpl::Tick() {
  if (callbacks_.on_tick) callbacks_.on_tick();
  tick_timer_.expires_after(std::chrono::nanoseconds(tick_interval_ns_));
  tick_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !stopping_) Tick();
  });
}

void ControlServerImpl::BeginStop() {
  if (stopping_) return;
  stopping_ = true;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  tick_timer_.cancel();
  accept_timer_.cancel();
  while (!links_.empty()) Close(links_.begin()->first);
  if (lingering_ == 0) io_.stop();
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::Create(std::string_view address,
                                                             TimeNs tick_interval_ns,
                                                             Callbacks callbacks) {
  if (tick_interval_ns <= 0) return Err(InvalidArgument("the tick interval must be above 0"));
  if (!callbacks.on_message) return Err(InvalidArgument("on_message is missing"));
  SLACKLINE_ASSIGN_OR_RETURN(const Address parsed, ParseHostPort(address));
  auto server = std::make_unique<ControlServerImpl>(tick_interval_ns, std::move(callbacks));
  SLACKLINE_RETURN_ERR_IF_ERROR(server->Listen(parsed));
  return std::unique_ptr<ControlServer>(std::move(server));
}

}  // namespace slackline::transport
