// How channels come to be: listening, accepting, connecting.
#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "transport/address.h"
#include "transport/shm/shm_endpoint.h"

namespace slackline::transport {
namespace {

constexpr std::string_view kScheme = "shm";
// Ports that are tried when any free one will do; from where ephemeral ports usually begin.
constexpr uint16_t kFirstPort = 32768;
constexpr uint16_t kPortCount = 28232;
constexpr int kPortTries = 64;
constexpr int kMaxAcceptsPerVisit = 16;
constexpr TimeNs kAcceptRetryNs = 100 * kNsPerMs;

}  // namespace

Result<std::string> ShmEndpoint::Listen(std::string_view text) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  SLACKLINE_ASSIGN_OR_RETURN(Address address, ParseAddress(text, kScheme));
  if (listeners_.size() == kMaxShmListeners) {
    return Err(ResourceExhausted("an endpoint listens at " + std::to_string(kMaxShmListeners) +
                                 " addresses at most"));
  }
  const bool any_port = address.port == 0;
  std::random_device random;
  auto listener = std::make_unique<Listener>();
  listener->kind = ShmPollable::Kind::kListener;
  Status status;
  for (int i = 0; i < (any_port ? kPortTries : 1); ++i) {
    if (any_port) address.port = static_cast<uint16_t>(kFirstPort + random() % kPortCount);
    SLACKLINE_ASSIGN_OR_RETURN(const std::string name, SocketName(address));
    Result<Fd> socket = ListenLocal(name);
    status = socket ? OkStatus() : socket.error();
    if (socket) listener->socket = std::move(*socket);
    if (status.code() != StatusCode::kAlreadyExists) break;
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(status);
  SLACKLINE_RETURN_ERR_IF_ERROR(WatchSocket(listener->socket, *listener));
  listeners_.push_back(std::move(listener));
  return address.ToString();
}

void ShmEndpoint::Accept(Listener& listener) {
  for (int i = 0; i < kMaxAcceptsPerVisit; ++i) {
    Fd socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // Out of descriptors, mostly. The connection stays in the queue; accepting goes on later.
      LOG_EVERY_N(ERROR, 100) << "cannot accept a connection: " << std::strerror(errno);
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.socket.get(), nullptr);
      listener.retry_ns = now_ns_ + kAcceptRetryNs;
      NoteDeadline(listener.retry_ns);
      return;
    }
    const Result<LocalPeer> who = PeerOf(socket);
    const std::string peer = "shm://process-" + std::to_string(who ? who->pid : 0);
    if (!who || (who->uid != geteuid() && who->uid != 0)) {
      LogBadPeer(peer,
                 Unauthenticated(peer + " of user " + std::to_string(who ? who->uid : 0) +
                                 " may not connect: memory is shared among processes of one user"));
      continue;
    }
    if (channels_.size() == kMaxShmChannels) {
      LogBadPeer(peer, ResourceExhausted(peer + " is one connection more than " +
                                         std::to_string(kMaxShmChannels)));
      continue;
    }
    AddChannel(ShmChannel::Role::kAcceptor, peer)
        .Adopt(std::move(socket), now_ns_ + options_.hello_timeout_ns);
  }
}

Result<Channel*> ShmEndpoint::Connect(std::string_view text, TimeNs timeout_ns) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  SLACKLINE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, kScheme));
  if (address.port == 0) {
    return Err(InvalidArgument("cannot connect to port 0 of " + address.host));
  }
  SLACKLINE_ASSIGN_OR_RETURN(const std::string name, SocketName(address));
  if (channels_.size() == kMaxShmChannels) {
    return Err(
        ResourceExhausted(std::to_string(kMaxShmChannels) + " channels are open at this endpoint"));
  }
  ShmChannel& channel = AddChannel(ShmChannel::Role::kConnector, address.ToString());
  channel.StartConnecting(name, time_.NowNs(), std::max<TimeNs>(timeout_ns, 0));
  return &channel;
}

ShmChannel& ShmEndpoint::AddChannel(ShmChannel::Role role, std::string peer) {
  channels_.push_back(std::make_unique<ShmChannel>(*this, role, std::move(peer)));
  channels_.back()->slot = channels_.size() - 1;
  return *channels_.back();
}

Status ShmEndpoint::WatchSocket(const Fd& socket, ShmPollable& target) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &target;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0 || errno == EEXIST) {
    return OkStatus();
  }
  return ErrnoStatus(errno, "watching a socket");
}

}  // namespace slackline::transport
