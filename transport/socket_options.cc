#include "transport/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace slackline::transport {
namespace {

// A host that is gone without a word (power, cable) is noticed after about this long: idle
// connections by keep-alive probes, busy ones by unacknowledged bytes.
constexpr int kKeepAliveIdleSeconds = 20;
constexpr int kKeepAliveIntervalSeconds = 10;
constexpr int kKeepAliveProbes = 4;
constexpr int kUnacknowledgedMs = 60'000;

Status SetInt(int socket, int level, int option, int value, const char* what) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) == 0) return OkStatus();
  return ErrnoStatus(errno, what);
}

}  // namespace

Status SetBufferSizes(int socket, const SocketOptions& options) {
  if (options.send_buffer_bytes > 0) {
    SLACKLINE_RETURN_IF_ERROR(
        SetInt(socket, SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes, "SO_SNDBUF"));
  }
  if (options.receive_buffer_bytes > 0) {
    SLACKLINE_RETURN_IF_ERROR(
        SetInt(socket, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes, "SO_RCVBUF"));
  }
  return OkStatus();
}

Status SetConnectedOptions(int socket) {
  SLACKLINE_RETURN_IF_ERROR(SetInt(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  SLACKLINE_RETURN_IF_ERROR(SetInt(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  SLACKLINE_RETURN_IF_ERROR(
      SetInt(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds, "TCP_KEEPIDLE"));
  SLACKLINE_RETURN_IF_ERROR(
      SetInt(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds, "TCP_KEEPINTVL"));
  SLACKLINE_RETURN_IF_ERROR(
      SetInt(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT"));
  return SetInt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs, "TCP_USER_TIMEOUT");
}

}  // namespace slackline::transport
