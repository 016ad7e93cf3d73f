// When a push is applied and when weights are released: BSP, SSP and ASP as one pure state machine.
//
// Events in, decisions out; no clock, no I/O, no threads, no payloads. A shard feeds it what
// arrives and carries out what it decides; simulations drive it for millions of steps. One object
// keeps the watermarks of all chunks of one shard.
//
//   mode  staleness  a push at clock c            weights for clock c + 1 are released when
//   ----  ---------  ---------------------------  ---------------------------------------------
//   BSP   0          joins the sum of round c,    round c of the chunk is closed: every member
//                    which is applied once        that takes part in it has pushed c
//   SSP   s > 0      is applied at once           every member has pushed at least c - s
//   ASP   async      is applied at once           at once
//
// BSP with a quorum of K: a push joins the round that is open when it comes, whatever its clock,
// one a member and round. The round closes when every member that has clocks left has joined it, or
// `grace_ns` after K have; who comes later joins the next one. So clocks are the worker's own and
// rounds the chunk's. Weights for clock c + 1 are released when the round of the member's push c is
// closed. (In the direction of arXiv 2604.21428, decoupled local updates.)
//
// Words. A *life* is (worker, incarnation). Its *watermark* on a chunk is the clock up to which
// nothing of it is outstanding there: it starts at first_clock - 1 and moves by one with every
// push; each clock arrives once, in order, without gaps. In BSP exactly one round is *open* on a
// chunk; all before it are closed for good.
//
// Membership in BSP. A member takes part in a chunk's rounds from its first clock on, or from the
// round that was open there when its view was installed, if that is later: its pushes to rounds
// that were closed before are refused (kRoundClosed) and owed by nobody, and it may go on at the
// open round. The pushes of a member that leaves stay in the open round, which divides by the
// weight received. A round in which no member takes part closes at once; so does a started round
// when the last member leaves, for what was acknowledged is not lost.
//
// Sources: BSP: Valiant, CACM 33(8), 1990. SSP: Ho et al., "More Effective Distributed ML via a
// Stale Synchronous Parallel Parameter Server", NIPS 2013, section 3 (the bound).
//
// Threading: owner thread: the shard's. Allocation: none after construction and OnView, apart from
// the decision list that the caller owns (one OnPush appends at most one decision a member and one
// more). Errors: a peer's event is never an error of this object; it is refused by a decision.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"

namespace slackline::server {

enum class ConsistencyMode : uint8_t { kBsp, kSsp, kAsp };

struct ConsistencyOptions {
  ConsistencyMode mode = ConsistencyMode::kBsp;
  Clock staleness = 0;               // SSP: the bound s > 0. BSP: 0. ASP: not used.
  uint32_t chunk_count = 0;          // Chunks are numbered 0..chunk_count-1 inside the shard.
  uint32_t max_members = 256;        // A view with more is refused.
  Clock first_clock = 0;             // After a restore: the clock after the checkpoint's.
  uint32_t quorum = 0;               // BSP: K; 0: rounds are of all members.
  TimeNs grace_ns = 0;               // With a quorum.
  Clock last_clock = INT64_MAX - 1;  // With a quorum: nobody waits for a member that pushed it.
};

struct Member {
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  Clock first_clock = 0;  // Its first push; it owes nothing before.
  friend bool operator==(const Member&, const Member&) = default;
};

struct View {
  uint64_t version = 0;
  std::vector<Member> members;  // Sorted by worker; one life a worker.
};

// An update's identity. `chunk` is the shard's local number.
struct PushId {
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  Clock clock = 0;
  uint32_t chunk = 0;
  friend bool operator==(const PushId&, const PushId&) = default;
};

enum class PushAction : uint8_t {
  kApply,        // SSP, ASP: step the optimizer with it now.
  kAccumulate,   // BSP: add it to the round's sum. kCloseRound may follow in the same call.
  kDuplicate,    // Held already: touch nothing. Its pull, if any, is answered as if new.
  kEarly,        // BSP: of a later round than the open one (quorum: its life's last push is in
                 // the open one); nothing was recorded. Keep it and present it again after the
                 // chunk's next kCloseRound, or answer kBusy.
  kNotInView,    // Refuse: this life is not a member.
  kRoundClosed,  // BSP: refuse: its round was closed before this life joined. Nothing is recorded;
                 // the life's next clocks are taken as soon as they reach the open round.
  kSkipsClock,   // Refuse: it leaves a gap after the life's watermark or precedes its first clock.
};
std::string_view PushActionName(PushAction action);

struct Decision {
  enum class Kind : uint8_t {
    // BSP: all rounds of the chunk up to `clock` are closed. Apply the mean of the pushes that were
    // accumulated: their sum divided by `weight_sum`. At zero weight the optimizer does not step
    // (every push was empty, or no member took part), and the version stays. More than one round
    // closes in one decision only where nobody took part in them.
    kCloseRound,
    // Answer the pull `ticket` with the chunk's present weights; `min_clock` goes into the reply.
    kRelease,
    // Answer the pull `ticket` with kNotInView: its life left the view, or never was in it.
    kRefuse,
  };
  Kind kind = Kind::kRelease;
  uint32_t chunk = 0;
  Clock clock = 0;        // kCloseRound: the last round it closes. Others: the pull's clock.
  double weight_sum = 0;  // kCloseRound.
  uint32_t pushes = 0;    // kCloseRound: non-empty pushes in the sum.
  Clock min_clock = kNoClock;
  uint64_t ticket = 0;
  friend bool operator==(const Decision&, const Decision&) = default;
};

// How far a life came: its highest watermark over all chunks.
struct LifeClock {
  WorkerId worker = 0;
  Incarnation incarnation = 0;
  Clock highest = kNoClock;
};

class Consistency {
 public:
  // InvalidArgument: a mode and a staleness that do not fit, zero chunks or members, a negative
  // first clock.
  static Result<Consistency> Create(const ConsistencyOptions& options);

  // Installs a newer view: members that are gone leave all clocks (rounds may close, pulls may be
  // released, theirs are refused); joiners count from their first clock. A member that stays keeps
  // its watermarks and its pulls; its first clock is read only when it joins. An older or equal
  // version changes nothing. Decisions are in the order in which they must be carried out.
  // InvalidArgument: unsorted, doubled or too many members, incarnation 0, a negative first clock;
  // or a life that is not newer than its worker's last one here, or starts at a clock which that
  // one reached (either would break exactly-once). Nothing changes then.
  Status OnView(const View& view, std::vector<Decision>* decisions);

  // What a push at this identity would be, recording nothing: what a shard asks before it gives the
  // payload a place to land.
  PushAction Preview(const PushId& id) const;

  // Records a push. `weight` (finite, >= 0) is the samples behind it; `empty` counts as weight 0
  // with no gradient. The action is for the caller to carry out before the decisions appended to
  // `decisions`.
  PushAction OnPush(const PushId& id, double weight, bool empty, std::vector<Decision>* decisions);

  // Asks for the weights that clock `id.clock` may see: a push-pull at c asks for c + 1, a plain
  // pull for its own clock (a life's first one: first_clock), kNoClock for whatever there is now.
  // Answered by a kRelease or kRefuse decision with `ticket`, now or later. For clock r it is
  // released when
  //   BSP  round r - 1 is closed on the chunk (OpenRound >= r);
  //   SSP  every member's watermark is at least r - 1 - s, and its own at least r - 1;
  //   ASP  its own watermark is at least r - 1;
  // "its own" because a worker reads all of its own writes, and a resent pull may come before the
  // resent push. The caller sends at most one open pull per (life, chunk); a newer one replaces an
  // older one (a resend), whose ticket is then dropped silently.
  void OnPull(const PushId& id, uint64_t ticket, std::vector<Decision>* decisions);

  // Quorum: tells the time, which never goes back; what comes after happens at this time. Closes
  // nothing by itself: the caller closes what is due when it can change the chunk.
  void OnTime(TimeNs now_ns) { now_ns_ = now_ns; }
  // Quorum: the chunk's grace is over.
  bool Due(uint32_t chunk) const { return rounds_[chunk].grace_end_ns <= now_ns_; }
  void CloseDue(uint32_t chunk, std::vector<Decision>* decisions);
  // Quorum: the next end of a grace that is not over yet; kNever.
  TimeNs NextDue() const;

  // Forgets an open pull (its channel closed).
  void DropPull(uint64_t ticket, uint32_t chunk);

  // The clock up to which every member's updates are in the chunk's weights: BSP: the last closed
  // round; SSP, ASP, quorum: the slowest member's watermark. first_clock - 1 of the options
  // (kNoClock, if nothing was restored) when there are no members.
  Clock MinClock(uint32_t chunk) const;
  // The life's watermark on the chunk: every clock up to it is held (or, in BSP, was closed before
  // it joined); with a quorum, is in a round that is closed. kNoClock if it is not a member.
  Clock Watermark(uint32_t chunk, WorkerId worker, Incarnation incarnation) const;
  // Highest watermark of a life over all chunks: of a member, or of the last life of a worker that
  // left (see kDepartedPerMember). kNoClock for others.
  Clock HighestClock(WorkerId worker, Incarnation incarnation) const;
  // Appends the members and those that left and are remembered.
  void AppendLives(std::vector<LifeClock>* lives) const;
  // BSP: the round that is open on the chunk.
  Clock OpenRound(uint32_t chunk) const;
  const View& view() const { return view_; }

  // Lives that left are remembered, one a worker, up to this many times max_members; then the
  // one that left first is forgotten.
  static constexpr size_t kDepartedPerMember = 4;

 private:
  // One member on one chunk.
  struct Seat {
    Clock watermark = kNoClock;
    Clock takes_part_from = 0;  // Clocks before it, from the first clock on, closed without it.
    Clock pull_clock = kNoClock;
    uint64_t pull_ticket = 0;
    bool pull_open = false;
    Clock joined_round = kNoClock;  // Quorum: of the last push.
  };
  // BSP: the round that is open on one chunk.
  struct Round {
    Clock clock = 0;
    double weight_sum = 0;
    uint32_t non_empty = 0;
    uint32_t recorded = 0;         // With empty ones.
    TimeNs grace_end_ns = kNever;  // Quorum.
  };
  static constexpr size_t kNoSlot = SIZE_MAX;

  explicit Consistency(const ConsistencyOptions& options);

  Status ValidateView(const View& view) const;
  // Position of a life in the view, kNoSlot if it is not a member.
  size_t FindSlot(WorkerId worker, Incarnation incarnation) const;
  const LifeClock* FindDeparted(WorkerId worker) const;
  void RememberDeparted(const LifeClock& life);
  PushAction Classify(const PushId& id, size_t slot) const;
  std::span<Seat> seats(uint32_t chunk);
  std::span<const Seat> seats(uint32_t chunk) const;
  // Moves what stays to its new slot, refuses the pulls of those that leave, seats the joiners.
  void Reseat(const View& view, std::vector<Decision>* decisions);
  // BSP: closes the rounds of the chunk that are complete, at most two decisions.
  void CloseRounds(uint32_t chunk, std::vector<Decision>* decisions);
  // Whether every member that takes part in the open round has pushed it.
  bool RoundComplete(uint32_t chunk) const;
  // The first clock from the open round on in which a member takes part; the open round if none.
  Clock NextOwedRound(uint32_t chunk) const;
  bool has_quorum() const { return options_.quorum > 0; }
  // The last clock of a seat that is in the weights.
  Clock Settled(const Seat& seat, uint32_t chunk) const;
  bool QuorumComplete(uint32_t chunk);
  bool MayRelease(const Seat& seat, uint32_t chunk, Clock min_clock) const;
  void ReleasePulls(uint32_t chunk, std::vector<Decision>* decisions);

  ConsistencyOptions options_;
  TimeNs now_ns_ = 0;
  View view_;                        // members, in slot order.
  std::vector<Clock> highest_;       // By slot.
  std::vector<Seat> seats_;          // Chunk by chunk, one for each slot.
  std::vector<Round> rounds_;        // By chunk.
  std::vector<LifeClock> departed_;  // In the order of leaving; capacity is its bound.
};

}  // namespace slackline::server
