// A shard: some of the job's chunks, and everything that happens to them. One thread drives it, or
// a simulator; it shares nothing with other shards.
//
// A push travels through here like this: OnRequestArriving checks the header against what this side
// knows and names a receive slot; OnRequest checks the payload, asks the consistency rule what the
// push is, and carries the answer out in one pass over memory (decode and update fused); pulls that
// became due are answered from the chunk's live copy without copying it.
//
// Threading: owner thread: the one that calls Endpoint::Poll. Every method and callback runs on it.
// Purity: no threads, clocks, files or randomness inside; time comes from the TimeSource, so that
// the same object runs under a simulator.
// Ownership: endpoint and time source must outlive the shard. The endpoint must not call the
// handler any more once the shard is gone.
// Allocation: after InstallMap and InstallView, requests allocate nothing.
// Bounds: channels, open requests, receive slots and held pushes are tables of fixed size; what
// does not fit is told to wait (Landing::Later) or to come again (kBusy). A peer that reads none
// of its replies for `stalled_reader_timeout_ns` loses its channel: no wait in here outlasts that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/optimizer/optimizer.h"
#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "proto/wire_header.h"
#include "server/checkpoint/chunk_cut.h"
#include "server/chunk_store.h"
#include "server/consistency/consistency.h"
#include "server/late_push.h"
#include "server/open_requests.h"
#include "server/shard_job.h"
#include "transport/transport.h"

namespace slackline::server {

struct ShardOptions {
  ShardIndex shard = 0;  // Global index.
  uint32_t expected_workers = 1;
  uint32_t max_members = 256;
  uint32_t max_channels = 0;   // 0: two a worker (a reconnect overlaps) and 8 for strangers.
  uint32_t receive_slots = 0;  // 0: two a worker, at least 8. Half of them may hold early pushes.
  TimeNs hello_timeout_ns = 10 * kNsPerSecond;  // A channel that does not say who it is.
  TimeNs stalled_reader_timeout_ns = 30 * kNsPerSecond;
  TimeNs log_interval_ns = kNsPerSecond;  // Refusals are logged at most this often, and counted.
};

// A chunk read back from a checkpoint. `data` as in ChunkCut.
struct ChunkRestore {
  ChunkIndex chunk = 0;
  uint64_t version = 0;
  uint64_t steps = 0;
  const float* weights = nullptr;
  std::vector<const float*> slots;  // By optimizer slot; `count` floats each.
  // What readers held (server/published.h); null: a lossy pull codec starts from the weights.
  const float* reference = nullptr;
  size_t count = 0;
};

class Shard final : public transport::Handler {
 public:
  Shard(transport::Endpoint& endpoint, const TimeSource& time, const ShardOptions& options);
  ~Shard() override;
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Takes the chunks that the map gives to this shard and allocates everything for them. Their
  // weights come with kInit or RestoreChunk. The same epoch again changes nothing; a newer one must
  // leave the shard's chunks as they are (FailedPrecondition otherwise).
  Status InstallMap(const control::ShardMap& map);
  // Takes a newer view, before or after the map. If a chunk must change because of it while all its
  // copies are being sent, the view waits for them. InvalidArgument: not a view.
  Status InstallView(const control::View& view);
  // After InstallMap and before any worker pushes. InvalidArgument: not a chunk of this shard, or
  // of another shape.
  Status RestoreChunk(const ChunkRestore& restore);

  // Does what is due. Call after every Poll and at NextDeadline.
  void OnTick(TimeNs now);
  // When OnTick must be called at the latest; kNever when nothing waits for time to pass.
  TimeNs NextDeadline() const;
  // For the heartbeat. Allocates.
  control::ShardReport Report() const;

  // Cuts a checkpoint. BSP: each chunk as it is right after round `clock`; otherwise, with a
  // quorum, or if `final`, as it is now. `sink` gets every chunk and then Finish, and must live
  // until then. A checkpoint that was under way is finished with Aborted. Chunks do not change
  // while their copy waits for a buffer of the sink: their pushes are held.
  void BeginCheckpoint(uint64_t id, Clock clock, bool final, CheckpointSink* sink);
  bool checkpointing() const { return cut_.sink != nullptr; }

  // As SlotNames() of the job; empty before InstallMap.
  const std::vector<std::string>& slot_names() const { return slot_names_; }
  const Optimizer* optimizer() const { return optimizer_.get(); }  // Null before InstallMap.
  const ChunkStore* chunks() const { return store_.get(); }        // Null before InstallMap.
  Epoch epoch() const { return epoch_; }
  uint64_t view_version() const;
  uint32_t initialised_chunks() const { return initialised_chunks_; }
  bool initialised() const { return store_ && initialised_chunks_ == ChunkCount(); }

  // transport::Handler
  void OnOpened(transport::Channel& channel) override;
  void OnClosed(transport::Channel& channel, const Status& status) override;
  transport::Landing OnRequestArriving(transport::Channel& channel,
                                       const proto::WireHeader& header) override;
  void OnRequest(transport::Channel& channel, const proto::WireHeader& header,
                 MutableBytes payload) override;
  void OnReplySent(transport::Channel& channel, uint64_t request_id) override;

 private:
  // A push on its way through the shard.
  struct Push {
    Peer* peer = nullptr;
    const proto::WireHeader* header = nullptr;
    uint32_t local = 0;
    int32_t slot = -1;        // Where the payload is; -1: there is none (empty, or drained).
    bool not_finite = false;  // Its values were refused: it counts as empty.
  };
  // The payload that a closing round has not summed yet: it is fused with the update.
  struct LastPush {
    const std::byte* payload = nullptr;
    float payload_scale = 1;
  };
  struct Cut {
    CheckpointSink* sink = nullptr;  // Null: no checkpoint is under way.
    uint64_t id = 0;
    Clock clock = kNoClock;
    bool at_clock = false;  // BSP, no quorum: chunks are cut when their round `clock` closes.
    size_t left = 0;        // Chunks not submitted yet.
    size_t scan = 0;        // Where the search for a pending chunk goes on.
    bool ready = false;     // A chunk waits and, as far as we know, a buffer is free.
  };
  // A push of a deterministic round, in the tree's order.
  struct Leaf {
    WorkerId worker = 0;
    size_t buffer = 0;
  };

  uint32_t ChunkCount() const { return store_ ? static_cast<uint32_t>(store_->size()) : 0; }

  // ---- shard.cc: set-up, channels, time
  Status AllocateTables(const control::ShardMap& map);
  Status TryInstallPendingView();
  void CloseReadersThatLeft(const View& view);
  bool ViewMustWait();
  // Quorum: closes the rounds whose grace is over, where the chunk can change now.
  void CloseDueRounds();
  Status ReserveLeavesFor(const View& view);
  Peer* PeerOf(transport::Channel& channel) const;
  void ForgetPeer(Peer* peer);
  void ClosePeer(Peer* peer);
  void CloseStalledPeers(TimeNs now);
  TimeNs CheckInterval() const;
  // Everything that may go on now: held pushes, a waiting view, channels that wait for a slot.
  void Settle();
  void ResumeChannels();
  void LogRefusal(const Peer& peer, const proto::WireHeader& header, std::string_view why);

  // ---- shard_request.cc: what a request may do, before it is carried out
  // Why a request is refused; kOk if it may go on. Looks at identity, epoch, chunk and sizes.
  struct Refusal {
    proto::ReplyStatus status = proto::ReplyStatus::kOk;
    std::string_view why;
  };
  Refusal Check(const Peer& peer, const proto::WireHeader& header) const;
  Refusal CheckPush(const proto::WireHeader& header, const Chunk& chunk) const;
  bool IsMember(WorkerId worker, Incarnation incarnation) const;
  enum class Arrival : uint8_t { kLand, kDrain, kWait };
  Arrival Judge(const proto::WireHeader& header, uint32_t local) const;
  void Dispatch(Peer* peer, const proto::WireHeader& header, int32_t slot);
  void HandleHello(Peer* peer, const proto::WireHeader& header);
  void HandleInit(Peer* peer, const proto::WireHeader& header, uint32_t local, int32_t slot);
  void FreeSlot(int32_t slot);

  // ---- shard_push.cc
  void HandlePush(const Push& push);
  void CarryOut(const Push& push);
  void Refuse(const Push& push, proto::ReplyStatus status, std::string_view why);
  PayloadFault CheckValues(const Push& push) const;
  std::string DescribeFault(const Push& push, const PayloadFault& fault) const;
  bool MayHold() const { return held_.size() < held_limit_; }
  bool HoldsPushOf(const proto::WireHeader& header, uint32_t local) const;
  void HoldPush(const Push& push);
  bool RetryOneHeld();
  const std::byte* PayloadOf(const Push& push) const;

  // ---- shard_reduce.cc
  Refusal CheckReduce(const proto::WireHeader& header, const Chunk& chunk) const;
  Arrival JudgeReduce(const proto::WireHeader& header, uint32_t local) const;
  void HandleReduce(const Push& push);
  bool AddContribution(const Push& push, Reduction* reduction);
  void OpenReduce(const Push& push);
  void SettleReductions(uint32_t local);
  void AnswerReduce(uint32_t index);

  // ---- shard_pull.cc
  // Opens a pull; the ticket, or 0 when it was answered at once because it cannot be opened.
  uint64_t OpenPull(Peer* peer, const proto::WireHeader& header, uint32_t local,
                    proto::ReplyStatus status);
  void RunDecisions(const LastPush& last);
  void AnswerWeights(uint32_t index, Clock min_clock);
  void ReplyPinned(uint32_t index, uint32_t* pins, proto::WireHeader reply, ConstBytes payload);
  void AnswerPlain(const Peer& peer, const proto::WireHeader& request, proto::ReplyStatus status);
  void SupersedePull(const Peer& peer, const proto::WireHeader& header, uint32_t local);
  void DropRequest(uint32_t index);

  // ---- shard_apply.cc
  bool Changeable(uint32_t local);
  void ApplyAsync(const Push& push);
  // Corrects the gradient in decoded_ for its delay, if the weights that it was taken at are known.
  void Compensate(const Push& push, float scale);
  void Accumulate(const Push& push);
  void AddLeaf(const Push& push, bool empty);
  const float* SumLeaves(uint32_t local);
  void CloseRound(const Decision& decision, const LastPush& last);
  void Step(uint32_t local, const GradientView& gradient, double learning_rate);
  void Publish(Chunk* chunk, uint32_t target);
  void SetWeights(uint32_t local, const float* weights);

  // ---- shard_checkpoint.cc
  void OnRoundClosedForCut(uint32_t local, Clock clock);
  bool CutChunk(uint32_t local);
  void ContinueCut();
  void FinishCut(const Status& status);

  transport::Endpoint& endpoint_;
  const TimeSource& time_;
  const ShardOptions options_;

  // The job; from InstallMap on.
  Epoch epoch_ = 0;
  ShardJob job_;
  std::vector<std::string> slot_names_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ChunkStore> store_;
  std::optional<Consistency> consistency_;
  std::optional<View> pending_view_;  // Waits for the map, or for copies that are being sent.
  uint32_t initialised_chunks_ = 0;
  // One chunk. SSP, ASP: a push that the optimizer cannot read as it came. Lossy pull codec: the
  // step that is being published.
  std::vector<float> decoded_;
  std::vector<float*> leaf_scratch_;
  std::unique_ptr<WeightBackups> backups_;  // Delay compensation.
  std::vector<std::vector<Leaf>> leaves_;   // Deterministic: of each chunk's open round.

  // Requests.
  std::vector<Peer> peers_;  // Fixed: channels point into it.
  std::unique_ptr<OpenRequests> requests_;
  std::unique_ptr<ReceiveSlots> slots_;
  std::vector<uint32_t> held_;  // Oldest first; at most held_limit_.
  size_t held_limit_ = 0;
  std::vector<Peer*> waiting_for_slot_;  // Oldest first; at most one entry a peer.
  std::vector<Decision> decisions_;      // Scratch; empty between events.
  size_t sending_count_ = 0;             // Requests in state kSending.
  // Set while an event is carried out: callbacks that a transport makes from inside our own calls
  // (a Reply that finds its channel broken) then only tidy up, and start nothing new.
  bool busy_ = false;

  Cut cut_;

  uint64_t pushes_ = 0, bytes_in_ = 0, bytes_out_ = 0, refused_ = 0;
  TimeNs last_log_at_ = -kNsPerSecond;
  uint64_t logs_suppressed_ = 0;
  TimeNs next_check_at_ = 0;
};

}  // namespace slackline::server
