// The TCP transport's endpoint: channels over non-blocking sockets, Boost.Asio as the reactor, run
// by Poll() on the owner's thread.
//
// Poll works in passes over the channels that are hot (their socket did not block last time), each
// pass bounded in bytes and messages so that both directions and all channels advance together.
// Only when no channel gets anything done does it sleep in the reactor.
//
// Threading: owner thread: the first to call Poll(); asserted. Wake() is thread-safe.
// Ownership: owns its channels. Regions must be freed before it.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/time_source.h"
#include "transport/address.h"
#include "transport/member.h"
#include "transport/pacer.h"
#include "transport/peer_log.h"
#include "transport/socket_options.h"
#include "transport/tcp/handler_slot.h"
#include "transport/tcp/socket_io.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/transport.h"

namespace slackline::transport {

// Bounds of one endpoint.
inline constexpr size_t kMaxTcpChannels = 1024;
inline constexpr size_t kMaxTcpListeners = 8;

struct TcpOptions {
  uint64_t max_region_bytes = uint64_t{256} << 30;
  // An accepted connection must send its first valid header within this.
  TimeNs first_header_timeout_ns = 10 * kNsPerSecond;
  // A peer may pause between messages for ever, inside one only for this.
  TimeNs stall_timeout_ns = 60 * kNsPerSecond;
  SocketOptions socket;
  // Bytes of all channels together are paced to this, in each direction; 0: they are not.
  double link_gbps = 0;
  // Bytes that one channel reads, and writes, before the other direction has its turn. Measured on
  // loopback, 1 MiB requests and replies: 4 MiB moves a third more bytes a second of processor time
  // than 256 KiB does, since the ends wake each other less often. Fixed socket buffers of 256 KiB
  // to 4 MiB gained nothing over the kernel's own sizing.
  size_t pass_bytes = 4u << 20;
};

class TcpEndpoint final : public Endpoint, public Waiter {
 public:
  static Result<std::unique_ptr<Endpoint>> Create(const TcpOptions& options);
  ~TcpEndpoint() override;

  // ---- Endpoint ----
  void set_handler(Handler* handler) override { handler_ = handler; }
  // Names are looked up here, which may block: it is for start-up.
  Result<std::string> Listen(std::string_view address) override;
  // Names are looked up in the background.
  Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) override;
  // Waits are rounded up to milliseconds.
  size_t Poll(TimeNs max_wait_ns) override;
  void Wake() override;
  Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) override;
  const EndpointStats& stats() const override { return stats_; }
  std::string_view name() const override { return "tcp"; }

  // ---- Waiter ----
  Status Watch(int fd) override;

  const TcpIoStats& io_stats() const { return io_stats_; }

 private:
  friend class TcpChannel;
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::ip::tcp,
                                                      boost::asio::io_context::executor_type>;
  using Resolver =
      boost::asio::ip::basic_resolver<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;

  struct Listener {
    explicit Listener(boost::asio::io_context& io) : acceptor(io), socket(io) {}
    Acceptor acceptor;
    TcpSocket socket;  // The next connection's.
    HandlerSlot slot;
    bool waiting = false;
  };

  struct WatchedFd {
    explicit WatchedFd(boost::asio::io_context& io) : descriptor(io) {}
    boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type> descriptor;
    HandlerSlot slot;
    bool waiting = false;
  };

  explicit TcpEndpoint(const TcpOptions& options);

  // ---- tcp_endpoint.cc ----
  void RunReactor(TimeNs max_wait_ns);
  void RearmWatches();
  void ServiceHot();
  void SweepDeadlines();
  void Reap();
  void ResumePaced();
  bool OnOwnerThread() const;

  // ---- tcp_connect.cc ----
  TcpChannel& AddChannel(TcpChannel::Role role, std::string peer);
  TcpChannel* FindChannel(uint64_t id);
  void Resolve(TcpChannel& channel, const Address& address);
  Status OpenListener(Listener& listener, const Address& address);
  void StartAccepting(Listener& listener);
  void OnAccepted(Listener& listener, int error);

  // ---- For channels ----
  void Activate(TcpChannel& channel);
  // Takes a closed channel out of the open ones; it is destroyed when its handlers have run.
  void Bury(TcpChannel& channel);
  // A channel may be given up at `deadline_ns`.
  void NoteDeadline(TimeNs deadline_ns);
  // The channel waits until the pacer has bytes again.
  void NotePaced(const Pacer& pacer);
  void LogBadPeer(std::string_view peer, const Status& status);

  const TcpOptions options_;
  SteadyTimeSource time_;
  TimeNs now_ns_ = 0;  // As of the pass.
  Handler* handler_ = nullptr;
  EndpointStats stats_;
  TcpIoStats io_stats_;
  PeerLog peer_log_;
  uint64_t region_bytes_ = 0;
  std::vector<std::byte> drain_;  // Where payloads go that nobody wants.

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  Resolver resolver_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<WatchedFd>> watches_;
  std::vector<std::unique_ptr<TcpChannel>> channels_;
  std::vector<std::unique_ptr<TcpChannel>> graveyard_;
  std::vector<TcpChannel*> hot_;
  uint64_t next_channel_id_ = 1;
  TimeNs next_deadline_ns_ = kNever;
  Pacer send_pacer_, receive_pacer_;
  TimeNs paced_until_ns_ = kNever;  // Some channel waits for a pacer.

  size_t events_ = 0;  // Of the present Poll.
  bool polling_ = false;
  TimeNs reactor_visit_ns_ = 0;
  std::thread::id owner_;

  HandlerSlot wake_slot_;
  std::atomic<bool> wake_pending_{false};
  bool woken_ = false;
};

}  // namespace slackline::transport
