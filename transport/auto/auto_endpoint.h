// An endpoint of several transports that picks one for each peer: the first of its members that
// both ends have and that reaches. A shard's address lists all its ways in ("shm://...,tcp://...");
// the worker's side picks and says which and why, once a peer.
//
// All members share one thread and one wait: when nobody has anything to do, those that wait by a
// descriptor are watched by the one that runs a reactor (TCP). Memory is allocated by one member
// and made known to the others, so that a payload can leave by any of them.
//
// A way that fails before it opened (a container that may not share memory, say) is passed over at
// the next Connect to that address; when all have failed they start over.
//
// Threading, ownership, errors: transport.h's. Channels are the members' own.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/member.h"
#include "transport/poll_mode.h"
#include "transport/transport.h"

namespace slackline::transport {

// Addresses whose failed ways are remembered; beyond, the oldest is forgotten.
inline constexpr size_t kMaxRememberedPeers = 1024;

class AutoEndpoint final : public Endpoint, private Handler {
 public:
  struct Member {
    std::unique_ptr<Endpoint> endpoint;  // Null: this machine does not have it.
    std::string scheme;
    // What a choice for this member rests on ("same host"), or why it is missing.
    std::string reason;
    // The host that an address of this member names; empty: the one that Listen was given. Only a
    // peer of the same host_id is reached by it.
    std::string host_id;
  };
  // `members` in order of preference; the last one is the Waiter and always there. The first that
  // is there allocates memory.
  static Result<std::unique_ptr<Endpoint>> Create(std::vector<Member> members, PollMode poll_mode);
  ~AutoEndpoint() override;

  void set_handler(Handler* handler) override;
  // "auto://host:port": every member listens at `host`, at the same port where it is free.
  Result<std::string> Listen(std::string_view address) override;
  Result<Channel*> Connect(std::string_view address, TimeNs timeout_ns) override;
  size_t Poll(TimeNs max_wait_ns) override;
  void Wake() override;
  Result<std::unique_ptr<Region>> Allocate(size_t size_bytes) override;
  const EndpointStats& stats() const override;
  std::string_view name() const override { return "auto"; }

 private:
  struct Slot {
    Member member;
    Waitable* waitable = nullptr;
    MemoryUser* memory = nullptr;
    bool used = false;  // Listens or has connected.
  };
  // What is known of an address that was connected to.
  struct Peer {
    std::string address;
    std::vector<bool> failed;  // By member.
    size_t logged = SIZE_MAX;  // The member that the log names.
  };
  // A connect whose outcome is not known.
  struct Attempt {
    Channel* channel = nullptr;
    std::string address;
    size_t member = 0;
  };
  class SharedRegion;

  AutoEndpoint(std::vector<Slot> slots, PollMode poll_mode);

  // ---- auto_endpoint.cc ----
  size_t PollMembers();
  size_t Spin(TimeNs budget_ns);
  size_t Sleep(TimeNs max_wait_ns);
  void Use(size_t index);
  Slot& waiter() { return slots_.back(); }

  // ---- auto_connect.cc ----
  Peer& Remember(std::string_view address);
  // The member to take for this peer, and in `*why` the reasons; InvalidArgument: none fits.
  Result<size_t> Choose(const Peer& peer, const std::vector<std::string_view>& ways,
                        std::string* why);

  // Handler: notes how attempts end, and passes everything on.
  void OnOpened(Channel& channel) override;
  void OnClosed(Channel& channel, const Status& status) override;
  void OnTaken(Channel& channel, uint64_t request_id) override {
    handler_->OnTaken(channel, request_id);
  }
  void OnReply(Channel& channel, const proto::WireHeader& header, MutableBytes payload) override {
    handler_->OnReply(channel, header, payload);
  }
  Landing OnRequestArriving(Channel& channel, const proto::WireHeader& header) override {
    return handler_->OnRequestArriving(channel, header);
  }
  void OnRequest(Channel& channel, const proto::WireHeader& header, MutableBytes payload) override {
    handler_->OnRequest(channel, header, payload);
  }
  void OnReplySent(Channel& channel, uint64_t request_id) override {
    handler_->OnReplySent(channel, request_id);
  }

  std::vector<Slot> slots_;
  Handler* handler_ = nullptr;
  const SteadyTimeSource time_;
  Spinner spinner_;
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  mutable EndpointStats stats_;  // The sum, made anew when asked for.

  // While one member alone is in use it does all the waiting: this one. Else null.
  Endpoint* alone_ = nullptr;
  TimeNs waiter_visit_ns_ = 0;
  bool waiter_busy_ = false;  // Had something to do at its last visit.
  // Who is to be woken. A change of it wakes the new one, so that no Wake() is lost in between.
  std::atomic<Endpoint*> sleeper_;
  std::atomic<bool> woken_{false};
};

}  // namespace slackline::transport
