// The system calls of the TCP transport, counted: one gather write, one scatter read.
// Threading: owner thread. Allocation: none.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace slackline::transport {

// For tests and benchmarks: how many system calls and wake-ups the work took.
struct TcpIoStats {
  uint64_t writes = 0, reads = 0;                  // sendmsg and recvmsg calls.
  uint64_t writes_blocked = 0, reads_blocked = 0;  // Of them, those that moved nothing.
  uint64_t read_waits = 0, write_waits = 0;        // Registrations with the reactor.
  uint64_t paced_waits = 0;                        // Times that a channel waited for link_gbps.
  uint64_t sleeps = 0;                             // Poll() had nothing to do and waited.
};

// What one call did: bytes moved, or an error number. A call that would block (or was interrupted)
// is EAGAIN. A read of 0 bytes with no error is the peer's end of stream.
struct IoResult {
  size_t bytes = 0;
  int error = 0;
};

IoResult GatherWrite(int socket, std::span<iovec> vectors, TcpIoStats& stats);
IoResult ScatterRead(int socket, std::span<iovec> vectors, TcpIoStats& stats);
// Bytes that the other end's kernel has acknowledged: what was written into this one's buffers says
// nothing of a peer. 0 where the system does not tell.
uint64_t AckedBytes(int socket);

}  // namespace slackline::transport
