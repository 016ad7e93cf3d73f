// The shared-memory transport's endpoint, for peers on the same host: no system call while both
// ends are awake, one copy a payload.
//
// Poll looks at every channel's ring. When there is nothing it spins as PollMode says, and then
// sleeps in epoll; before, it tells every peer to ring. Sockets are looked at when it sleeps and
// once in a while: they pass memory, ring, and hang up when a peer dies.
//
// Who may connect: processes of the same user (and root), by the kernel's word. They can read the
// memory that Allocate gave, once a payload was sent to them from it; none can write it.
//
// Threading: owner thread: the first to call Poll(); asserted. Wake() is thread-safe.
// Ownership: owns its channels. Regions must be freed before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/file.h"
#include "common/time_source.h"
#include "transport/mapped_region.h"
#include "transport/member.h"
#include "transport/peer_log.h"
#include "transport/poll_mode.h"
#include "transport/shm/shm_channel.h"
#include "transport/transport.h"

namespace slackline::transport {

inline constexpr size_t kMaxShmChannels = 1024;
inline constexpr size_t kMaxShmListeners = 8;

struct ShmOptions {
  uint64_t max_region_bytes = uint64_t{256} << 30;
  PollMode poll_mode = PollMode::kAdaptive;
  // An accepted connection must say hello within this.
  TimeNs hello_timeout_ns = 10 * kNsPerSecond;
  // Bytes that one channel copies before the others have their turn.
  size_t pass_bytes = 2u << 20;
};

class ShmEndpoint final : public Endpoint, public Waitable {
 public:
  static Result<std::unique_ptr<Endpoint>> Create(const ShmOptions& options);
  ~ShmEndpoint() override;

  // ---- Endpoint ----
  void set_handler(Handler* handler) override { handler_ = handler; }
  Result<std::string> Listen(std::string_view address) override;
  Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) override;
  // Sleeps are rounded up to milliseconds.
  size_t Poll(TimeNs max_wait_ns) override;
  void Wake() override;
  Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) override;
  const EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "shm"; }

  // ---- Waitable ----
  bool ArmWait() override;
  int wait_fd() const override { return epoll_.get(); }
  TimeNs NextDeadlineNs() const override { return next_deadline_ns_; }

  // For tests: how often it rang a peer awake, and slept.
  uint64_t rings() const { return rings_; }
  uint64_t sleeps() const { return sleeps_; }

 private:
  friend class ShmChannel;
  class SharedRegion;

  struct Listener : ShmPollable {
    Fd socket;
    TimeNs retry_ns = kNever;  // Out of descriptors: not watched until then.
  };
  struct OwnRegion {
    uint64_t id = 0;
    MappedRegion* memory = nullptr;  // Null: the place is free.
  };

  explicit ShmEndpoint(const ShmOptions& options);
  Status Open();

  // ---- shm_endpoint.cc ----
  void ServiceChannels();
  void Spin(TimeNs budget_ns);
  void Sleep(TimeNs max_wait_ns);
  // Handles what epoll reports, waiting for it at most this long.
  void VisitSockets(TimeNs max_wait_ns);
  void Disarm();
  // This Poll was, or is being, woken: it must not sleep.
  bool Woken() const { return woken_ || wake_pending_.load(); }
  void SweepDeadlines();

  // ---- shm_connect.cc ----
  void Accept(Listener& listener);
  ShmChannel& AddChannel(ShmChannel::Role role, std::string peer);
  Status WatchSocket(const Fd& socket, ShmPollable& target);

  // ---- For channels and regions ----
  const OwnRegion* FindRegion(ConstBytes bytes);
  void ForgetRegion(const MappedRegion& memory);
  void Bury(ShmChannel& channel);
  void NoteDeadline(TimeNs deadline_ns);
  void LogBadPeer(std::string_view peer, const Status& status);

  const ShmOptions options_;
  const SteadyTimeSource time_;
  TimeNs now_ns_ = 0;  // As of the pass.
  Handler* handler_ = nullptr;
  EndpointStats stats_;
  PeerLog peer_log_;
  Spinner spinner_;

  uint64_t region_bytes_ = 0;
  std::vector<OwnRegion> regions_;     // kMaxShmRegions places.
  const OwnRegion* last_region_;       // The last one found.
  std::vector<uint64_t> generations_;  // Of each place: ids are never used again.

  Fd epoll_, wake_;
  ShmPollable wake_target_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<ShmChannel>> channels_;
  std::vector<std::unique_ptr<ShmChannel>> graveyard_;
  TimeNs next_deadline_ns_ = kNever;

  size_t events_ = 0;  // Of the present Poll.
  uint64_t rings_ = 0, sleeps_ = 0;
  bool polling_ = false;
  bool armed_ = false;
  bool woken_ = false;
  TimeNs visit_ns_ = 0;
  std::thread::id owner_;
  std::atomic<bool> wake_pending_{false};
};

}  // namespace slackline::transport
