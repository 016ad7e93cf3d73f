// The rules of server/consistency/ once more, written to be obviously right: the whole history is
// kept, and every answer is worked out from it anew. Slow, unbounded, and only for tests.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/consistency/consistency.h"

namespace slackline::server {

using Life = std::pair<WorkerId, Incarnation>;

struct ModelClose {
  uint32_t chunk = 0;
  Clock clock = 0;
  double weight = 0;
  uint32_t pushes = 0;
  friend bool operator==(const ModelClose&, const ModelClose&) = default;
  friend auto operator<=>(const ModelClose&, const ModelClose&) = default;
};
struct ModelAnswer {
  uint64_t ticket = 0;
  bool released = false;
  Clock min_clock = kNoClock;
  friend bool operator==(const ModelAnswer&, const ModelAnswer&) = default;
  friend auto operator<=>(const ModelAnswer&, const ModelAnswer&) = default;
};
struct ModelOutcome {
  std::vector<ModelClose> closes;    // Without rounds that nobody pushed.
  std::vector<ModelAnswer> answers;  // Pulls.
};

class ConsistencyModel {
 public:
  explicit ConsistencyModel(const ConsistencyOptions& options) : options_(options) {
    for (uint32_t chunk = 0; chunk < options.chunk_count; ++chunk) {
      open_[chunk] = options.first_clock;
    }
  }

  ModelOutcome OnView(const View& view) {
    ModelOutcome outcome;
    std::map<Life, Clock> next;
    for (const Member& member : view.members) {
      const Life life{member.worker, member.incarnation};
      const auto old = members_.find(life);
      next[life] = old == members_.end() ? member.first_clock : old->second;
      if (old != members_.end()) continue;
      for (const auto& [chunk, open] : open_) open_at_joining_[{life, chunk}] = open;
    }
    members_ = next;
    for (auto pull = pulls_.begin(); pull != pulls_.end();) {
      if (members_.count(pull->first.first) == 0) {
        outcome.answers.push_back({pull->second.second, false, kNoClock});
        pull = pulls_.erase(pull);
      } else {
        ++pull;
      }
    }
    Settle(&outcome);
    return outcome;
  }

  PushAction OnPush(const PushId& id, double weight, bool empty, ModelOutcome* outcome) {
    const Life life{id.worker, id.incarnation};
    const auto member = members_.find(life);
    if (member == members_.end()) return PushAction::kNotInView;
    if (id.clock < member->second) return PushAction::kSkipsClock;
    if (id.clock < StartsAt(life, id.chunk)) return PushAction::kRoundClosed;
    if (Has(life, id.chunk, id.clock)) return PushAction::kDuplicate;
    const Clock expected = Pushed(life, id.chunk) + 1;
    if (id.clock != expected) return PushAction::kSkipsClock;
    const bool bsp = options_.mode == ConsistencyMode::kBsp;
    if (bsp && id.clock > open_[id.chunk]) return PushAction::kEarly;
    pushes_[{id.chunk, id.clock}][life] = empty ? std::nullopt : std::optional<double>(weight);
    Settle(outcome);
    return bsp ? PushAction::kAccumulate : PushAction::kApply;
  }

  void OnPull(const PushId& id, uint64_t ticket, ModelOutcome* outcome) {
    const Life life{id.worker, id.incarnation};
    if (members_.count(life) == 0) {
      outcome->answers.push_back({ticket, false, kNoClock});
      return;
    }
    pulls_[{life, id.chunk}] = {id.clock, ticket};
    Settle(outcome);
  }

  void DropPull(uint64_t ticket, uint32_t chunk) {
    std::erase_if(pulls_, [&](const auto& pull) {
      return pull.first.second == chunk && pull.second.second == ticket;
    });
  }

  Clock MinClock(uint32_t chunk) {
    if (options_.mode == ConsistencyMode::kBsp) return open_[chunk] - 1;
    if (members_.empty()) return options_.first_clock - 1;
    Clock slowest = INT64_MAX;
    for (const auto& [life, first] : members_) slowest = std::min(slowest, Pushed(life, chunk));
    return slowest;
  }
  Clock OpenRound(uint32_t chunk) { return open_[chunk]; }
  size_t open_pulls() const { return pulls_.size(); }

 private:
  // The first clock of the chunk that the life takes part in.
  Clock StartsAt(const Life& life, uint32_t chunk) {
    const Clock first = members_.at(life);
    if (options_.mode != ConsistencyMode::kBsp) return first;
    return std::max(first, open_at_joining_.at({life, chunk}));
  }
  bool Has(const Life& life, uint32_t chunk, Clock clock) {
    const auto found = pushes_.find({chunk, clock});
    return found != pushes_.end() && found->second.count(life) > 0;
  }
  // The last clock of the life's unbroken row of pushes; just before its start without any.
  Clock Pushed(const Life& life, uint32_t chunk) {
    Clock clock = StartsAt(life, chunk) - 1;
    while (Has(life, chunk, clock + 1)) ++clock;
    return clock;
  }

  void Settle(ModelOutcome* outcome) {
    if (options_.mode == ConsistencyMode::kBsp) {
      for (auto& [chunk, open] : open_) {
        while (MayClose(chunk, open)) {
          if (const auto round = pushes_.find({chunk, open}); round != pushes_.end()) {
            ModelClose close{chunk, open, 0, 0};
            for (const auto& [life, weight] : round->second) {
              if (!weight) continue;
              close.weight += *weight;
              ++close.pushes;
            }
            outcome->closes.push_back(close);
          }
          ++open;
        }
      }
    }
    for (auto pull = pulls_.begin(); pull != pulls_.end();) {
      const auto& [life, chunk] = pull->first;
      const auto& [clock, ticket] = pull->second;
      if (MayRead(life, chunk, clock)) {
        outcome->answers.push_back({ticket, true, MinClock(chunk)});
        pull = pulls_.erase(pull);
      } else {
        ++pull;
      }
    }
  }

  bool MayClose(uint32_t chunk, Clock round) {
    const bool started = pushes_.count({chunk, round}) > 0;
    if (members_.empty()) return started;
    for (const auto& [life, first] : members_) {
      if (StartsAt(life, chunk) <= round && !Has(life, chunk, round)) return false;
    }
    return true;
  }

  bool MayRead(const Life& life, uint32_t chunk, Clock clock) {
    if (clock == kNoClock) return true;
    if (options_.mode == ConsistencyMode::kBsp) return open_[chunk] > clock - 1;
    if (Pushed(life, chunk) < clock - 1) return false;
    if (options_.mode == ConsistencyMode::kAsp) return true;
    for (const auto& [other, first] : members_) {
      if (Pushed(other, chunk) < clock - 1 - options_.staleness) return false;
    }
    return true;
  }

  ConsistencyOptions options_;
  std::map<Life, Clock> members_;  // First clocks.
  std::map<uint32_t, Clock> open_;
  std::map<std::pair<Life, uint32_t>, Clock> open_at_joining_;
  // By chunk and clock: who pushed, with what weight (none: an empty push).
  std::map<std::pair<uint32_t, Clock>, std::map<Life, std::optional<double>>> pushes_;
  std::map<std::pair<Life, uint32_t>, std::pair<Clock, uint64_t>> pulls_;  // Clock and ticket.
};

}  // namespace slackline::server
