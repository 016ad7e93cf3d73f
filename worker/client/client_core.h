// The client's logic without threads: one link to every shard, one open request a chunk, credit,
// reconnects and resends. A worker's I/O thread and the simulator drive the very same class; time,
// randomness and I/O are handed to it.
//
// A request's life: ready -> sent -> (taken) -> answered. `ready` requests leave in the order of
// their chunk numbers, which is the order in which the next forward needs them, as far as the
// shard's credit and the bound on open requests allow. Credit is the payload bytes that a shard has
// not yet taken; it returns with kTaken or with the reply.
//
// A cut link fences its channel (Close), waits with exponential backoff and jitter, connects again,
// says hello, and sends what was not answered again: the same bytes in the same order. Exactly-once
// is the shard's part; this class keeps the identity (worker, incarnation, clock, round, chunk) and
// the payload as they were.
//
// How answers are treated:
//   kOk, kDuplicate   done.
//   kBusy             sent again after a pause (doubling while the shard stays busy).
//   kMapChanged       OnMapNeeded, and sent again after a pause: with the new map if SetMap came.
//   kNotInView        the job is over for this life: OnFailed(Aborted).
//   kRoundClosed      a push-pull's gradient came too late and was not applied; the weights are
//                     fetched with a plain pull, and the result says so in push_status.
//   kNotFinite        the same: the shard counted the push as empty.
//                     A reduce that gets one of the two is done without payload.
//   kNotInitialised   done without payload; the owner decides.
//   kMalformed        done without payload; the owner reports it.
//   kShuttingDown     as a cut: the shard may come back.
//
// Threading: owner thread: the one that calls Endpoint::Poll(). Events run inside Poll() or
// OnTick(); OnLinkLost also inside Submit() and SetMap(), OnFailed also inside SetMap() and Fail().
// Ownership: endpoint, time and events must outlive this object; payload and landing memory must
// stay valid and unchanged (payload) until the chunk is done, OnFailed ran, or this object is
// destroyed. Allocation: none after the links are open, apart from messages about failures and
// stalls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/random.h"
#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/wire_header.h"
#include "transport/transport.h"
#include "worker/client/slot_list.h"

namespace slackline::worker {

// The request id of a link's hello; others are (count << 32 | chunk), with chunk < 2^32 - 1.
inline constexpr uint64_t kHelloRequestId = UINT64_MAX;

struct CoreOptions {
  WorkerId worker = 0;
  Incarnation incarnation = 1;
  size_t credit_bytes = 64u << 20;                               // A larger push travels alone.
  uint32_t max_open_requests = transport::kMaxOpenRequests - 1;  // A link; one more is a hello.
  TimeNs connect_timeout_ns = 5 * kNsPerSecond;  // One attempt, and the answer to its hello.
  TimeNs backoff_min_ns = 20 * kNsPerMs;         // Between attempts; doubles, half of it jitter.
  TimeNs backoff_max_ns = 2 * kNsPerSecond;
  TimeNs busy_pause_min_ns = 1 * kNsPerMs;
  TimeNs busy_pause_max_ns = 200 * kNsPerMs;
  // A link that owes an answer and on which no byte moved for this long is asked for a sign of
  // life; if none comes for as long again it is cut.
  TimeNs probe_ns = 5 * kNsPerSecond;
  TimeNs stall_report_ns = 5 * kNsPerSecond;
  TimeNs stall_timeout_ns = 60 * kNsPerSecond;  // For one request, over all its resends.
  uint64_t seed = 1;                            // Of the jitter.
};

// Where chunks live. The number of chunks is fixed by the first map.
struct CoreMap {
  Epoch epoch = 1;
  std::vector<std::string> shard_addresses;
  std::vector<ShardIndex> chunk_shard;  // By chunk.
};

struct ChunkRequest {
  proto::MessageKind kind = proto::MessageKind::kPushPull;  // Any but kHello.
  ChunkIndex chunk = 0;
  Clock clock = 0;  // A push-pull at c asks for the weights of c + 1; a pull at c for those of c.
  uint32_t round = 0;
  bool empty = false;                    // A push without gradient: the clock moves.
  CodecId codec = CodecId::kNone;        // Of `payload`.
  CodecId reply_codec = CodecId::kNone;  // Of what lands in `landing`.
  double weight = 0;
  float scale = 1;
  ConstBytes payload = {};
  // Filled wholly by the reply. kReduce: as large as `payload`; an empty one is answered without.
  MutableBytes landing = {};
  // Not 0: weights come as steps from the version that this worker holds, so many bytes each, in
  // reply_codec, or whole as FP32, which `landing` has room for.
  size_t delta_bytes = 0;
};

struct ChunkResult {
  ChunkIndex chunk = 0;
  Clock clock = 0;  // The request's.
  // kOk (a duplicate, too): applied. kRoundClosed, kNotFinite: not applied, `landing` is filled all
  // the same. kNotInitialised, kMalformed: nothing happened, `landing` is not filled.
  proto::ReplyStatus status = proto::ReplyStatus::kOk;
  size_t bytes_sent = 0;           // Payload, once, whatever was resent.
  size_t bytes_received = 0;       // Payload.
  bool filled = false;             // It holds what was asked for, which may be no bytes at all.
  CodecId codec = CodecId::kNone;  // Of it.
  uint32_t resends = 0;
  uint64_t version = 0;
  Clock min_clock = kNoClock;  // Every live worker's updates through this clock are included.
  double weight = 0;           // kReduce: of all contributions in the aggregate.
};

class CoreEvents {
 public:
  virtual ~CoreEvents() = default;
  // A request was answered; its chunk is free for the next Submit(), also inside this call.
  virtual void OnChunkDone(const ChunkResult& result) = 0;
  // Every link is open: after SetMap, and again after cuts.
  virtual void OnAllOpen() {}
  // A connection was cut, or could not be made; the `attempts`-th in a row. It is tried again.
  virtual void OnLinkLost(ShardIndex /*shard*/, uint32_t /*attempts*/, const Status&) {}
  // A shard knows another map than `epoch`: fetch the new one and call SetMap (not inside this).
  virtual void OnMapNeeded(Epoch /*epoch*/) {}
  // A request has waited longer than stall_report_ns; says which, where and for what.
  virtual void OnWaiting(const std::string& /*line*/) {}
  // A request that will not be answered, because the end has come; after OnFailed.
  virtual void OnChunkDropped(ChunkIndex /*chunk*/) {}
  // The end: Aborted (not in the view, or Cancel), DeadlineExceeded (stall), InvalidArgument (an
  // address that is none). All channels are closed and no memory is touched any more.
  virtual void OnFailed(const Status&) = 0;
};

struct CoreStats {
  uint64_t requests = 0;       // Submitted.
  uint64_t sends = 0;          // First sends and resends.
  uint64_t resends = 0;        // After cuts, busy and map changes.
  uint64_t links_opened = 0;   // Hellos answered with OK.
  uint64_t links_lost = 0;     // Connects that failed and connections that were cut.
  uint64_t duplicates = 0;     // Resends that the shard held already.
  uint64_t busy = 0;           // kBusy answers.
  uint64_t pushes_missed = 0;  // kRoundClosed and kNotFinite.
  uint64_t stray_replies = 0;  // To nothing that is open.
};

class ClientCore final : private transport::Handler {
 public:
  // Becomes the endpoint's handler.
  ClientCore(const CoreOptions& options, transport::Endpoint& endpoint, const TimeSource& time,
             CoreEvents& events);
  ~ClientCore() override;  // Closes every channel.
  ClientCore(const ClientCore&) = delete;
  ClientCore& operator=(const ClientCore&) = delete;

  // Installs the first map (and connects), or a newer one: links are fenced and opened anew and
  // open requests follow their chunks. An equal or older epoch changes nothing. Not inside an
  // event. InvalidArgument: a shard that is not there, another number of chunks.
  Status SetMap(const CoreMap& map);

  // Starts a request. FailedPrecondition: the chunk has one open. NotFound: no such chunk.
  // InvalidArgument: payload too large, or a kind that is no chunk request. After a failure: its
  // status.
  Status Submit(const ChunkRequest& request);

  // When OnTick() must be called next; kNever if nothing is due.
  TimeNs NextDeadline() const;
  void OnTick();

  // Ends everything with OnFailed(status), unless it ended before.
  void Fail(const Status& status);

  bool all_open() const { return links_open_ == links_.size() && !links_.empty(); }
  const Status& failure() const { return failure_; }
  size_t open_requests() const { return open_requests_; }
  Epoch epoch() const { return map_.epoch; }
  const CoreStats& stats() const { return stats_; }

 private:
  struct Slot {
    enum class State : uint8_t {
      kIdle,
      kReady,   // In its link's `ready` set: never sent.
      kResend,  // In `resend`: must go out again.
      kSent,    // In `sent`; holds credit.
      kTaken,   // In `sent`; the shard holds the push, the credit is back.
      kPaused,  // In `paused` until resume_ns.
    };
    SlotLinks links;
    State state = State::kIdle;
    bool was_sent = false;
    bool wants_payload = false;
    bool wait_for_map = false;                                 // kPaused because of kMapChanged.
    proto::ReplyStatus push_status = proto::ReplyStatus::kOk;  // Of a push before its plain pull.
    ShardIndex shard = 0;
    uint32_t number = 0;       // Of the chunk inside its shard.
    proto::WireHeader header;  // As it goes, and goes again.
    ConstBytes payload;
    MutableBytes landing;
    size_t delta_bytes = 0;
    size_t bytes_received = 0;
    Clock clock = 0;
    size_t bytes_sent = 0;
    uint32_t resends = 0;
    TimeNs submitted_ns = 0;
    TimeNs resume_ns = 0;
    uint64_t version = 0;  // Of the weights that this worker holds.
  };

  struct Link {
    enum class State : uint8_t { kBackoff, kConnecting, kGreeting, kOpen };
    ShardIndex shard = 0;
    State state = State::kBackoff;
    transport::Channel* channel = nullptr;
    TimeNs deadline_ns = 0;  // kBackoff: connect. kGreeting: give up. kOpen: look for life.
    uint32_t attempts = 0;   // Failed in a row.
    uint32_t busy_in_a_row = 0;
    bool heard = false;         // Anything since the last look.
    uint64_t moved_bytes = 0;   // The channel's, at the last look.
    uint32_t silent_looks = 0;  // In a row.
    bool probing = false;       // A hello is out on an open link.
    Clock last_min_clock = kNoClock;
    Status last_error;
    size_t credit_used_bytes = 0;
    uint32_t open = 0;  // Requests in `sent`.
    SlotList sent;      // In the order of sending.
    SlotList resend;
    SlotList paused;  // By resume_ns.
    ReadySet ready;   // By Slot::number.
    std::vector<ChunkIndex> chunks;
  };

  // transport::Handler
  void OnOpened(transport::Channel& channel) override;
  void OnClosed(transport::Channel& channel, const Status& status) override;
  void OnTaken(transport::Channel& channel, uint64_t request_id) override;
  void OnReply(transport::Channel& channel, const proto::WireHeader& header,
               MutableBytes payload) override;

  // client_core_links.cc
  void BuildLinks(const CoreMap& map);
  void Connect(Link& link);
  Status SendHello(Link& link);
  void OnHelloReply(Link& link, const proto::WireHeader& header);
  void LoseLink(Link& link, const Status& status, bool closed);
  void TickLink(Link& link, TimeNs now_ns);
  void LookForLife(Link& link, TimeNs now_ns);
  void CloseAll();
  TimeNs Jittered(TimeNs pause_ns);

  // client_core.cc
  void Pump(Link& link);
  bool SendSlot(Link& link, ChunkIndex chunk);
  Slot* OpenSlot(uint64_t request_id);
  void Release(Link& link, Slot& slot);  // Takes it from `sent`, credit and all.
  void Finish(Link& link, Slot& slot, const proto::WireHeader& header);
  void Pause(Link& link, Slot& slot, bool wait_for_map);
  void PullAfterMissedPush(Link& link, Slot& slot, proto::ReplyStatus status);
  static size_t ExpectedBytes(const Slot& slot, const proto::WireHeader& header);
  void OnWeights(Link& link, Slot& slot, const proto::WireHeader& header, size_t payload_bytes);

  // client_core_stall.cc
  void CheckStall(TimeNs now_ns);
  std::string DescribeWait(const Slot& slot, TimeNs now_ns) const;
  std::string DescribePhase(const Slot& slot, const Link& link, TimeNs now_ns) const;

  const CoreOptions options_;
  transport::Endpoint& endpoint_;
  const TimeSource& time_;
  CoreEvents& events_;
  CoreMap map_;
  std::vector<Slot> slots_;  // By chunk.
  std::vector<Link> links_;  // By shard; never resized while channels point into it.
  size_t links_open_ = 0;
  size_t open_requests_ = 0;
  uint64_t next_request_ = 1;
  Rng rng_;
  TimeNs stall_check_ns_ = kNever;
  TimeNs last_report_ns_ = 0;
  Status failure_;
  CoreStats stats_;
};

}  // namespace slackline::worker
