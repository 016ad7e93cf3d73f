// Options that the sockets of the data plane and the control plane get.
// Threading: pure functions on the caller's socket.
#pragma once

#include "common/status.h"

namespace slackline::transport {

struct SocketOptions {
  int send_buffer_bytes = 0;     // 0: the kernel sizes it as it goes.
  int receive_buffer_bytes = 0;  // The same. Set before connect or listen: it decides the window.
};

// Before connect or listen.
Status SetBufferSizes(int socket, const SocketOptions& options);
// Once connected: no Nagle delay, dead hosts are noticed.
Status SetConnectedOptions(int socket);

}  // namespace slackline::transport
