// One round of a chunk in which its workers' contributions are put together (kReduce): who has
// contributed, and the aggregate. BSP only.
//
// A reduction belongs to a clock. It is complete when every member that takes part in the chunk's
// open round has contributed or has pushed that clock; so nobody waits for the dead, nor for one
// that went ahead. From then on the aggregate is fixed: a resend gets the same bytes, and who joins
// later gets it without having its own part in it. It is kept until the next clock's first
// contribution, which comes only when nobody can need the old one any more.
// Threading: owner thread: the shard's. Allocation: only when an aggregate or the number of
// contributors is larger than any before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/types.h"
#include "server/consistency/consistency.h"

namespace slackline::server {

class Reduction {
 public:
  Clock clock() const { return clock_; }
  bool complete() const { return complete_; }
  // Values that were put together; empty: nobody has sent any.
  std::span<const float> aggregate() const { return values_; }
  double weight() const { return weight_; }
  bool HasContributed(WorkerId worker, Incarnation incarnation) const;

  // Forgets the round before. Nothing of the old aggregate may be in flight.
  void Begin(Clock clock);
  // Records a contribution of a life that has none: `values` are finite, as many as those of the
  // others, or none for an empty one. Not once it is complete.
  void Add(WorkerId worker, Incarnation incarnation, double weight, std::span<const float> values,
           bool maximum);
  // Finds out whether it is complete now.
  void Settle(const Consistency& consistency, uint32_t chunk);

 private:
  struct Life {
    WorkerId worker = 0;
    Incarnation incarnation = 0;
  };
  Clock clock_ = kNoClock;
  bool complete_ = false;
  double weight_ = 0;
  std::vector<Life> contributors_;
  std::vector<float> values_;
};

}  // namespace slackline::server
