#include "transport/tcp/socket_io.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace slackline::transport {
namespace {

IoResult ResultOf(ssize_t returned) {
  if (returned >= 0) return {.bytes = static_cast<size_t>(returned), .error = 0};
  const bool again = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return {.bytes = 0, .error = again ? EAGAIN : errno};
}

}  // namespace

IoResult GatherWrite(int socket, std::span<iovec> vectors, TcpIoStats& stats) {
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  ++stats.writes;
  const IoResult result = ResultOf(sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  if (result.error == EAGAIN) ++stats.writes_blocked;
  return result;
}

IoResult ScatterRead(int socket, std::span<iovec> vectors, TcpIoStats& stats) {
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  ++stats.reads;
  const IoResult result = ResultOf(recvmsg(socket, &message, MSG_DONTWAIT));
  if (result.error == EAGAIN) ++stats.reads_blocked;
  return result;
}

uint64_t AckedBytes(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_acked;
}

}  // namespace slackline::transport
