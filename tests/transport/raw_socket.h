// A plain blocking TCP client for tests: what a stranger, a scanner or a broken peer would send.
// Threading: owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/types.h"

namespace slackline::transport {

class RawSocket {
 public:
  // "tcp://host:port" or "host:port", numeric. Fails the test if nobody answers.
  explicit RawSocket(std::string_view address);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  // False: the other end has closed.
  bool Write(ConstBytes bytes);
  bool Write(std::string_view text);
  // Waits for the other end to close (bounded); what it sent before is thrown away.
  bool WaitForClose();
  // True if the other end has closed by now; does not wait.
  bool ClosedNow();
  // Sends a reset instead of an end of stream when it closes.
  void ResetOnClose();

 private:
  int fd_ = -1;
};

}  // namespace slackline::transport
