// The RDMA transport's endpoint: RC queue pairs on the host's verbs devices. Set-up goes over a TCP
// connection to the address's port (the bootstrap), which stays open: a peer that dies is noticed
// at once, not when a queue pair's retries run out.
//
// Poll handles completions, then lets each channel that has something to do post it. When there is
// nothing it looks again, sleeps in the bootstrap's reactor until a device has news, or first the
// one and then the other (RdmaOptions::poll).
//
// Files: rdma_endpoint.cc (life, polling), rdma_endpoint_connect.cc (listening, connecting, rails).
// Threading: owner thread: the first to call Poll(); asserted. Wake() is thread-safe.
// Ownership: owns its channels. Regions must be freed before it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/file.h"
#include "common/random.h"
#include "common/time_source.h"
#include "transport/member.h"
#include "transport/peer_log.h"
#include "transport/poll_mode.h"
#include "transport/rdma/device.h"
#include "transport/rdma/memory.h"
#include "transport/rdma/rail.h"
#include "transport/rdma/rdma_channel.h"
#include "transport/rdma/rdma_options.h"
#include "transport/rdma/work_list.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/transport.h"

namespace slackline::transport {

class RdmaEndpoint final : public Endpoint, public Waitable, public MemoryUser, private Handler {
 public:
  // InvalidArgument, Unavailable: see OpenPorts.
  static Result<std::unique_ptr<Endpoint>> Create(const RdmaOptions& options);
  ~RdmaEndpoint() override;

  // ---- Endpoint ----
  void set_handler(transport::Handler* handler) override { handler_ = handler; }
  // "rdma://host:port": the bootstrap's address. Any address of the host does: GIDs are chosen by
  // the way to the peer.
  Result<std::string> Listen(std::string_view address) override;
  Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) override;
  size_t Poll(TimeNs max_wait_ns) override;
  void Wake() override;
  Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) override;
  const EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "rdma"; }

  // ---- Waitable, MemoryUser: as one of several transports ----
  bool ArmWait() override;
  int wait_fd() const override { return news_.get(); }
  // The bootstrap has no descriptor to wait for: it is looked at from time to time.
  TimeNs NextDeadlineNs() const override;
  Status Attach(MutableBytes bytes) override;
  void Detach(MutableBytes bytes) override;

 private:
  friend class RdmaChannel;
  friend class RdmaRegion;

  RdmaEndpoint(const RdmaOptions& options, std::vector<RdmaPort> ports,
               std::unique_ptr<TcpEndpoint> bootstrap, Fd news);

  // ---- rdma_endpoint.cc ----
  // One turn: completions, then posting.
  void Work();
  void HandleCompletions();
  void HandleCompletion(Rail& rail, const ibv_wc& completion);
  void ServiceHot();
  void VisitBootstrap(TimeNs max_wait_ns);
  void Wait(TimeNs max_wait_ns);
  void Spin(TimeNs until_ns);
  void Arm();
  void SweepDeadlines();
  bool OnOwnerThread() const;

  // ---- rdma_endpoint_connect.cc ----
  RdmaChannel& AddChannel(RdmaChannel::Role role, std::string peer, TcpChannel* bootstrap,
                          TimeNs timeout_ns);
  // ---- The bootstrap's events ----
  void OnOpened(Channel& bootstrap) override;
  void OnClosed(Channel& bootstrap, const Status& status) override;
  Landing OnRequestArriving(Channel& bootstrap, const proto::WireHeader& header) override;
  void OnRequest(Channel& bootstrap, const proto::WireHeader& header,
                 MutableBytes payload) override;
  void OnReply(Channel& bootstrap, const proto::WireHeader& header, MutableBytes payload) override;

  // ---- For channels ----
  // For a channel whose bootstrap goes out from `local_host`; `hint` is the peer's rail, if known.
  // Starts the rail.
  Result<Rail*> ChooseRail(std::string_view local_host, uint32_t hint);
  Status StartRail(Rail& rail);
  uint32_t NextPacketNumber();
  void NotePair(RdmaChannel& channel);
  void ForgetPair(const RdmaChannel& channel);
  void Activate(RdmaChannel& channel);
  void Bury(RdmaChannel& channel);
  // A READ's turn; false: the endpoint has its bound in flight, and the channel is activated when
  // that changes.
  bool TakeRead(RdmaChannel& channel);
  void OnReadsDone(uint32_t count);
  void LogBadPeer(std::string_view peer, const Status& status);
  // Null: the memory is not all in one region.
  const RdmaRegion* FindRegion(ConstBytes memory) const;

  // ---- For regions ----
  void NoteRegion(RdmaRegion& region);
  void ForgetRegion(const RdmaRegion& region);

  const RdmaOptions options_;
  SteadyTimeSource time_;
  TimeNs now_ns_ = 0;  // As of the pass.
  transport::Handler* handler_ = nullptr;
  EndpointStats stats_;
  PeerLog peer_log_;
  Rng random_;
  uint64_t region_bytes_ = 0;

  std::vector<std::unique_ptr<Rail>> rails_;
  uint32_t next_rail_ = 0;
  std::vector<RdmaRegion*> regions_;                   // By address.
  std::vector<std::unique_ptr<RdmaRegion>> attached_;  // Of them, those whose memory is another's.
  // After the rails: channels end before what they use.
  std::vector<std::unique_ptr<RdmaChannel>> channels_;
  std::vector<std::unique_ptr<RdmaChannel>> graveyard_;
  std::vector<RdmaChannel*> hot_;
  std::vector<RdmaChannel*> waiting_for_reads_;
  std::array<RdmaChannel*, kMaxRdmaChannels> by_id_{};        // By id % kMaxRdmaChannels.
  std::unordered_map<uint64_t, RdmaChannel*> by_queue_pair_;  // Rail and queue pair's number.
  uint32_t generation_ = 0;
  uint32_t reads_ = 0;  // In flight, of all channels.
  WorkList work_list_;
  std::unique_ptr<TcpEndpoint> bootstrap_;
  const Fd news_;  // An epoll set: readable when an armed device has a completion.
  Spinner spinner_;

  size_t events_ = 0;  // Of the present Poll.
  bool polling_ = false;
  TimeNs bootstrap_visit_ns_ = 0;
  TimeNs next_deadline_ns_ = kNever;
  std::thread::id owner_;
  std::atomic<bool> woken_{false};
};

}  // namespace slackline::transport
