#include "tests/transport/raw_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transport/address.h"

namespace slackline::transport {
namespace {

constexpr int kPatienceMs = 20'000;

}  // namespace

RawSocket::RawSocket(std::string_view text) {
  const bool with_scheme = text.starts_with("tcp://");
  const Address address = (with_scheme ? ParseAddress(text, "tcp") : ParseHostPort(text)).value();
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  EXPECT_EQ(inet_pton(AF_INET, address.host.c_str(), &to.sin_addr), 1);
  EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << std::strerror(errno);
}

RawSocket::~RawSocket() { close(fd_); }

bool RawSocket::Write(ConstBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

bool RawSocket::Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }

bool RawSocket::WaitForClose() {
  std::byte scratch[4096];
  for (;;) {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, kPatienceMs) <= 0) return false;
    if (recv(fd_, scratch, sizeof(scratch), 0) <= 0) return true;
  }
}

bool RawSocket::ClosedNow() {
  std::byte scratch[4096];
  for (;;) {
    const ssize_t got = recv(fd_, scratch, sizeof(scratch), MSG_DONTWAIT);
    if (got > 0) continue;
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

void RawSocket::ResetOnClose() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
}

}  // namespace slackline::transport
