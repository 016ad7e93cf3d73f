#include "transport/peer_log.h"

namespace slackline::transport {

bool PeerLog::ShouldLog(std::string_view host, TimeNs now_ns, uint64_t* suppressed) {
  *suppressed = 0;
  Peer* oldest = &peers_[0];
  for (Peer& peer : peers_) {
    if (!peer.host.empty() && peer.host == host) {
      if (now_ns - peer.logged_ns < kIntervalNs) {
        ++peer.suppressed;
        return false;
      }
      *suppressed = peer.suppressed;
      peer.suppressed = 0;
      peer.logged_ns = now_ns;
      return true;
    }
    const bool free_or_older =
        !oldest->host.empty() && (peer.host.empty() || peer.logged_ns < oldest->logged_ns);
    if (free_or_older) oldest = &peer;
  }
  *oldest = {.host = std::string(host), .logged_ns = now_ns, .suppressed = 0};
  return true;
}

}  // namespace slackline::transport
