// Who can share memory with whom. Threading: pure functions of the system.
#pragma once

#include <string>

namespace slackline::transport {

// 16 hexadecimal digits that two processes have in common if, and practically only if, they run on
// the same kernel, in the same network namespace (abstract Unix sockets are per namespace), as the
// same user. It is a host's name in addresses of shared memory: "shm://8f14e45fceea167a:4711".
std::string HostId();

}  // namespace slackline::transport
