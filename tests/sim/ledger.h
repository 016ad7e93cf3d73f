// What workers pushed and what became of it, and what weights may therefore hold.
//
// Every push of worker w at clock c adds to one element of the chunk: w * slots + c mod slots.
// SSP and ASP add 1 to it. BSP adds the round's mean, 1 / n for n equal pushes, with one element a
// clock (slots == clocks), so that a round's pushes are the elements of its clock that are not 0.
// With a quorum a round of n pushes adds 1 / n for each, of whatever clocks they are, so that the
// elements of value 1 / n are a multiple of n.
// Threading: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/time_source.h"
#include "common/types.h"

namespace slackline::sim {

struct LedgerOptions {
  bool bsp = false;
  bool quorum = false;   // BSP: a round may hold pushes of several clocks, and not of everyone.
  uint32_t workers = 1;  // Ranks 0 .. workers - 1.
  uint32_t chunks = 1;
  Clock clocks = 1;
  uint32_t slots = 1;    // Elements of a worker in a chunk.
  double tolerance = 0;  // Of one value, relative: rounding of codecs and of 1 / n.
};

class Ledger {
 public:
  explicit Ledger(const LedgerOptions& options);

  size_t elements() const { return options_.workers * options_.slots; }  // Of a chunk, used.
  size_t Element(WorkerId worker, Clock clock) const {
    return worker * options_.slots + static_cast<size_t>(clock % options_.slots);
  }

  // A life's push of a clock. `empty`: without gradient.
  void Sent(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk, bool empty);
  // It was acknowledged; every read that is asked for from now on holds it.
  void Acknowledged(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk,
                    TimeNs now_ns);
  // It was refused (BSP, round closed): it must not be found.
  void Refused(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk);

  // A worker's updates that a read must hold, whether they were acknowledged or not.
  struct MustSee {
    WorkerId worker = 0;
    Incarnation incarnation = 0;
    Clock from = 0;  // Its first clock.
    Clock through = kNoClock;
  };
  // Checks weights that a worker read, asked for at `asked_ns`. Returns what is wrong; empty: all
  // is as promised.
  std::string CheckRead(ChunkIndex chunk, std::span<const float> values, TimeNs asked_ns,
                        std::span<const MustSee> must_see) const;
  // Checks that every reader of a clock's aggregate (kReduce) gets the same values.
  std::string CheckAggregate(ChunkIndex chunk, Clock clock, std::span<const float> values);
  uint64_t aggregates() const { return aggregates_.size(); }

  // Checks a chunk after the last push: exactly once what was acknowledged, at most once the rest.
  std::string CheckFinal(ChunkIndex chunk, std::span<const float> values) const;

  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t refused() const { return refused_; }
  uint64_t unanswered() const;  // Sent with a gradient, and never heard of.

 private:
  struct Push {
    Incarnation incarnation = 0;
    bool empty = false;
    enum class State : uint8_t { kSent, kAcknowledged, kRefused } state = State::kSent;
    TimeNs answered_ns = kNever;
  };
  using Lives = std::vector<Push>;  // Of one worker, clock and chunk; one, rarely two.

  Lives& At(WorkerId worker, Clock clock, ChunkIndex chunk);
  const Lives& At(WorkerId worker, Clock clock, ChunkIndex chunk) const;
  Push& Find(WorkerId worker, Incarnation incarnation, Clock clock, ChunkIndex chunk);
  // Whether the lives' push of the clock may be in the weights, and whether it must be.
  static bool May(const Lives& lives);
  static bool MustSince(const Lives& lives, TimeNs asked_ns);
  std::string CheckElement(ChunkIndex chunk, WorkerId worker, uint32_t slot, float value,
                           uint32_t low, uint32_t high) const;
  std::string CheckRounds(ChunkIndex chunk, std::span<const float> values) const;
  std::string CheckShares(ChunkIndex chunk, std::span<const float> values) const;

  const LedgerOptions options_;
  std::vector<Lives> pushes_;
  std::map<std::pair<ChunkIndex, Clock>, std::vector<float>> aggregates_;
  uint64_t acknowledged_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace slackline::sim
