// When a push is applied and when weights are released: BSP, SSP and ASP as one pure state machine.
//
// Events in, decisions out; no clock, no I/O, no threads, no payloads. A shard feeds it what
// arrives and carries out what it decides; simulations drive it for millions of steps. One object
// keeps the watermarks of all chunks of one shard.
//
//   mode  staleness  a push at clock c                         weights for clock c+1 are released
//   when BSP   0          is summed with the others of clock c and  the round c of this chunk is
//   closed
//                    applied once, when all members pushed c
//   SSP   s > 0      is applied at once                        every member pushed at least c - s
//   ASP   async      is applied at once                        at once
//
// Sources: BSP: Valiant, CACM 33(8), 1990. SSP: Ho et al., "More Effective Distributed ML via a
// Stale Synchronous Parallel Parameter Server", NIPS 2013, section 3 (the bound). Threading: owner
// thread: the shard's. Allocation: none after construction and OnView, apart from the decision list
// that the caller owns. Errors: a peer's event is never an error of this object; it is refused by a
// decision.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace slackline::server {

enum class ConsistencyMode : uint8_t { kBsp, kSsp, kAsp };

struct ConsistencyOptions {
  ConsistencyMode mode = ConsistencyMode::kBsp;
  Clock staleness = 0;         // SSP: the bound s > 0. BSP: 0. ASP: not used.
  uint32_t chunk_count = 0;    // Chunks are numbered 0..chunk_count-1 inside the shard.
  uint32_t max_members = 256;  // A view with more is refused.
  Clock first_clock = 0;       // After a restore: the clock after the checkpoint's.
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
  kApply,       // SSP, ASP: step the optimizer with it now.
  kAccumulate,  // BSP: add it to the round's sum. A kCloseRound decision may follow in the same
                // call.
  kDuplicate,   // Held already: touch nothing. Its pull, if any, is answered as if new.
  kEarly,      // BSP: of a later round than the open one; nothing was recorded. Keep it and present
               // it again after the chunk's next kCloseRound, or answer kBusy.
  kNotInView,  // Refuse: this life is not a member.
  kRoundClosed,  // BSP: refuse: its round was closed without it (its life joined too late for it).
  kSkipsClock,   // Refuse: a life's clocks on a chunk come in order without gaps; this one skips.
};

struct Decision {
  enum class Kind : uint8_t {
    // BSP: apply the mean of the round's pushes: the sum divided by `weight_sum`. At zero weight
    // the
    // optimizer does not step (everyone's push was empty), the version stays.
    kCloseRound,
    // Answer the pull `ticket` with the chunk's present weights; `min_clock` goes into the reply.
    kRelease,
    // Answer the pull `ticket` with kNotInView: its life left the view.
    kRefuse,
  };
  Kind kind = Kind::kRelease;
  uint32_t chunk = 0;
  Clock clock = 0;        // kCloseRound: the round. Others: the pull's clock.
  double weight_sum = 0;  // kCloseRound.
  uint32_t pushes = 0;    // kCloseRound: non-empty pushes in the sum.
  Clock min_clock = kNoClock;
  uint64_t ticket = 0;
};

class Consistency {
 public:
  // InvalidArgument: a mode and a staleness that do not fit, or zero chunks.
  static Result<Consistency> Create(const ConsistencyOptions& options);

  // Installs a newer view: members that are gone leave all clocks (rounds may close, pulls may be
  // released, theirs are refused); joiners count from their first clock. An older or equal version
  // changes nothing. Decisions are in the order in which they must be carried out.
  // InvalidArgument: unsorted, doubled or too many members; nothing changes.
  Status OnView(const View& view, std::vector<Decision>* decisions);

  // What a push at this identity would be, recording nothing: what a shard asks before it gives the
  // payload a place to land.
  PushAction Preview(const PushId& id) const;

  // Records a push. `weight` is the samples behind it; `empty` counts as weight 0 with no gradient.
  // The action is for the caller to carry out before the decisions appended to `decisions`.
  PushAction OnPush(const PushId& id, double weight, bool empty, std::vector<Decision>* decisions);

  // Asks for the weights that clock `id.clock` may see (a push-pull at c asks for c + 1). Answered
  // by a kRelease or kRefuse decision with `ticket`, now or later. The caller sends at most
  // one open pull per (life, chunk); a newer one replaces an older one (a resend), whose ticket is
  // then dropped silently.
  void OnPull(const PushId& id, uint64_t ticket, std::vector<Decision>* decisions);

  // Forgets an open pull (its channel closed).
  void DropPull(uint64_t ticket, uint32_t chunk);

  // Highest clock of which all updates by every member are in this chunk; kNoClock if none.
  Clock MinClock(uint32_t chunk) const;
  // The life's watermark on the chunk: every clock up to it is held. Its first clock - 1 before its
  // first push; kNoClock if it is not a member.
  Clock Watermark(uint32_t chunk, WorkerId worker, Incarnation incarnation) const;
  // Highest watermark of a life over all chunks, also for lives that have left.
  Clock HighestClock(WorkerId worker, Incarnation incarnation) const;
  // BSP: the round that is open on the chunk.
  Clock OpenRound(uint32_t chunk) const;
  const View& view() const;
};

}  // namespace slackline::server
