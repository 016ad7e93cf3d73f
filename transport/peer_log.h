// Says whether a log line about a peer's bad bytes is due: one a peer and minute, so that a port
// scanner cannot fill the disk. Holds a bounded number of peers; the one seen longest ago gives
// way. Threading: owner thread. Allocation: none after construction but for names that do not fit a
// small string.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/time_source.h"
#include "common/types.h"

namespace slackline::transport {

class PeerLog {
 public:
  static constexpr TimeNs kIntervalNs = 60 * kNsPerSecond;
  static constexpr size_t kMaxPeers = 64;

  // `host` without its port: a scanner comes from a new one every time. True: log now;
  // `suppressed` is how many lines this peer was denied since the last one.
  bool ShouldLog(std::string_view host, TimeNs now_ns, uint64_t* suppressed);

 private:
  struct Peer {
    std::string host;
    TimeNs logged_ns = 0;
    uint64_t suppressed = 0;
  };
  std::array<Peer, kMaxPeers> peers_;
};

}  // namespace slackline::transport
