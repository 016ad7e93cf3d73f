// Random histories against a slow model, and the design's promises checked on what happened:
// bound, read my writes, exactly once, no one waits for the dead, and that nothing waits for ever.
// A failure prints its seed; SLACKLINE_SEED=n replays it (see tests/sim/seeds.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/random.h"
#include "server/consistency/consistency.h"
#include "tests/server/consistency_model.h"
#include "tests/sim/seeds.h"

namespace slackline::server {
namespace {

using slackline::sim::SeedsToRun;

// Draws of the test.
class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  uint64_t Next() { return rng_.Next(); }
  uint64_t Below(uint64_t bound) { return rng_.Below(bound); }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low + 1)));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  Rng rng_;
};

struct ActiveLife {
  Member member;
  std::vector<Clock> starts;  // By chunk: its first clock there that may count.
  std::vector<Clock> next;    // By chunk: what it pushes next.
};

struct OpenPull {
  Life life;
  uint32_t chunk = 0;
  Clock clock = 0;
};

class History {
 public:
  History(uint64_t seed, const ConsistencyOptions& options)
      : random_(seed),
        options_(options),
        machine_(*Consistency::Create(options)),
        model_(options) {}

  void Run(int events) {
    InstallView();
    for (int i = 0; i < events && !::testing::Test::HasFailure(); ++i) Step();
    Drain();
  }

 private:
  void Step() {
    const uint64_t draw = random_.Below(100);
    if (draw < 50) {
      if (ActiveLife* life = AnyLife()) PushNext(*life, AnyChunk());
    } else if (draw < 62) {
      PushAnything();
    } else if (draw < 88) {
      PullSomething();
    } else if (draw < 92) {
      DropSomething();
    } else if (draw < 97) {
      ChangeView();
    } else {
      std::vector<Decision> none;
      ASSERT_TRUE(machine_.OnView({version_, {}}, &none).ok());
      ASSERT_TRUE(none.empty()) << "an old view did something";
    }
  }

  uint32_t AnyChunk() { return static_cast<uint32_t>(random_.Below(options_.chunk_count)); }
  ActiveLife* AnyLife() {
    return active_.empty() ? nullptr : &active_[random_.Below(active_.size())];
  }

  // ---- Pushes ----

  void PushNext(ActiveLife& life, uint32_t chunk) {
    const PushAction action =
        Push({life.member.worker, life.member.incarnation, life.next[chunk], chunk});
    if (action == PushAction::kEarly) return;
    ASSERT_TRUE(action == PushAction::kApply || action == PushAction::kAccumulate ||
                action == PushAction::kRoundClosed)
        << PushActionName(action);
    ++life.next[chunk];
  }

  // Resends, gaps, the dead and strangers.
  void PushAnything() {
    const uint32_t chunk = AnyChunk();
    if (random_.OneIn(4)) {
      Push({static_cast<WorkerId>(random_.Below(6)), static_cast<Incarnation>(random_.Below(4)),
            random_.Between(0, 12), chunk});
      // It may have been somebody's next one by chance.
      ReadNext();
      return;
    }
    ActiveLife* life = AnyLife();
    if (life == nullptr) return;
    const Clock clock = std::max<Clock>(0, life->next[chunk] + random_.Between(-4, 3));
    Push({life->member.worker, life->member.incarnation, clock, chunk});
    ReadNext();
  }
  void ReadNext() {
    for (ActiveLife& life : active_) {
      for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
        life.next[chunk] =
            std::max(life.next[chunk],
                     machine_.Watermark(chunk, life.member.worker, life.member.incarnation) + 1);
      }
    }
  }

  PushAction Push(const PushId& id) {
    const bool empty = random_.OneIn(6);
    const auto weight = static_cast<double>(random_.Below(9));
    std::vector<Decision> decisions;
    ModelOutcome expected;
    const PushAction preview = machine_.Preview(id);
    const PushAction action = machine_.OnPush(id, weight, empty, &decisions);
    EXPECT_EQ(preview, action);
    EXPECT_EQ(action, model_.OnPush(id, weight, empty, &expected))
        << PushActionName(action) << " worker " << id.worker << " incarnation " << id.incarnation
        << " clock " << id.clock << " chunk " << id.chunk;
    if (action == PushAction::kApply || action == PushAction::kAccumulate) {
      const auto key = std::tuple(id.chunk, id.worker, id.incarnation, id.clock);
      EXPECT_TRUE(counted_.insert(key).second) << "counted twice";
      if (action == PushAction::kApply) {
        visible_.insert(key);
      } else {
        in_round_[{id.chunk, id.clock}].push_back({key, empty ? 0 : weight, empty});
      }
    }
    CarryOut(decisions, expected);
    return action;
  }

  // ---- Pulls ----

  void PullSomething() {
    const uint32_t chunk = AnyChunk();
    ActiveLife* life = AnyLife();
    if (life == nullptr || random_.OneIn(20)) {
      Pull({7, 1, 0, chunk});
      return;
    }
    Clock clock = life->next[chunk] + random_.Between(-2, 1);
    if (random_.OneIn(10)) clock = kNoClock;
    Pull({life->member.worker, life->member.incarnation, std::max(kNoClock, clock), chunk});
  }
  void Pull(const PushId& id) {
    const Life life{id.worker, id.incarnation};
    std::erase_if(open_pulls_, [&](const auto& pull) {
      return pull.second.life == life && pull.second.chunk == id.chunk;
    });
    const uint64_t ticket = ++last_ticket_;
    open_pulls_[ticket] = {life, id.chunk, id.clock};
    std::vector<Decision> decisions;
    ModelOutcome expected;
    machine_.OnPull(id, ticket, &decisions);
    model_.OnPull(id, ticket, &expected);
    CarryOut(decisions, expected);
  }
  void DropSomething() {
    if (open_pulls_.empty()) return;
    auto pull = open_pulls_.begin();
    std::advance(pull, static_cast<int64_t>(random_.Below(open_pulls_.size())));
    machine_.DropPull(pull->first, pull->second.chunk);
    model_.DropPull(pull->first, pull->second.chunk);
    open_pulls_.erase(pull);
  }

  // ---- Views ----

  void ChangeView() {
    if (!active_.empty() && random_.OneIn(2)) {
      active_.erase(active_.begin() + random_.Between(0, std::ssize(active_) - 1));
      // Often its successor comes in the same view.
      if (random_.OneIn(2)) return InstallView();
    }
    const auto worker = static_cast<WorkerId>(random_.Below(5));
    const auto taken = [&](const ActiveLife& life) { return life.member.worker == worker; };
    if (std::none_of(active_.begin(), active_.end(), taken)) {
      const Incarnation incarnation = ++incarnations_[worker];
      const Clock above = machine_.HighestClock(worker, incarnation - 1) + 1;
      const Clock around = machine_.MinClock(AnyChunk()) + random_.Between(-3, 4);
      active_.push_back({.member = {worker, incarnation, std::max({Clock{0}, above, around})},
                         .starts = {},
                         .next = {}});
    }
    InstallView();
  }

  void InstallView() {
    std::sort(active_.begin(), active_.end(), [](const ActiveLife& a, const ActiveLife& b) {
      return a.member.worker < b.member.worker;
    });
    View view{++version_, {}};
    for (ActiveLife& life : active_) {
      view.members.push_back(life.member);
      if (!life.starts.empty()) continue;
      for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
        const Clock open =
            options_.mode == ConsistencyMode::kBsp ? machine_.OpenRound(chunk) : Clock{0};
        life.starts.push_back(std::max(life.member.first_clock, open));
        life.next.push_back(life.member.first_clock);
      }
    }
    std::vector<Decision> decisions;
    const Status status = machine_.OnView(view, &decisions);
    ASSERT_TRUE(status.ok()) << status;
    CarryOut(decisions, model_.OnView(view));
  }

  // ---- What is checked ----

  // Carries the decisions out in their order, checks the promises, and compares with the model.
  void CarryOut(const std::vector<Decision>& decisions, ModelOutcome expected) {
    ModelOutcome found;
    for (const Decision& decision : decisions) {
      if (decision.kind == Decision::Kind::kCloseRound) {
        if (Close(decision)) {
          found.closes.push_back(
              {decision.chunk, decision.clock, decision.weight_sum, decision.pushes});
        }
        continue;
      }
      const bool released = decision.kind == Decision::Kind::kRelease;
      found.answers.push_back({decision.ticket, released, decision.min_clock});
      const auto pull = open_pulls_.find(decision.ticket);
      ASSERT_NE(pull, open_pulls_.end()) << "answered a pull that is not open";
      ASSERT_EQ(pull->second.chunk, decision.chunk);
      ASSERT_EQ(pull->second.clock, decision.clock);
      if (released) CheckPromises(pull->second, decision.min_clock);
      ASSERT_EQ(released, FindActive(pull->second.life) != nullptr);
      open_pulls_.erase(pull);
    }
    for (auto* outcome : {&found, &expected}) {
      std::sort(outcome->closes.begin(), outcome->closes.end());
      std::sort(outcome->answers.begin(), outcome->answers.end());
    }
    EXPECT_EQ(found.closes, expected.closes);
    EXPECT_EQ(found.answers, expected.answers);
    EXPECT_EQ(open_pulls_.size(), model_.open_pulls());
    for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
      EXPECT_EQ(machine_.MinClock(chunk), model_.MinClock(chunk));
      if (options_.mode == ConsistencyMode::kBsp) {
        EXPECT_EQ(machine_.OpenRound(chunk), model_.OpenRound(chunk));
      }
    }
  }

  // Makes a round's pushes visible. False if there were none.
  bool Close(const Decision& decision) {
    const auto round = in_round_.find({decision.chunk, decision.clock});
    double weight = 0;
    uint32_t non_empty = 0;
    if (round != in_round_.end()) {
      for (const auto& push : round->second) {
        weight += push.weight;
        non_empty += push.empty ? 0 : 1;
        EXPECT_TRUE(visible_.insert(push.key).second) << "applied twice";
      }
    }
    EXPECT_EQ(decision.weight_sum, weight);
    EXPECT_EQ(decision.pushes, non_empty);
    if (round == in_round_.end()) return false;
    in_round_.erase(round);
    return true;
  }

  const ActiveLife* FindActive(const Life& life) const {
    for (const ActiveLife& active : active_) {
      if (Life{active.member.worker, active.member.incarnation} == life) return &active;
    }
    return nullptr;
  }
  void ExpectVisible(const ActiveLife& life, uint32_t chunk, Clock through) const {
    for (Clock clock = life.starts[chunk]; clock <= through; ++clock) {
      ASSERT_TRUE(visible_.count({chunk, life.member.worker, life.member.incarnation, clock}))
          << "worker " << life.member.worker << " clock " << clock << " is missing";
    }
  }
  void CheckPromises(const OpenPull& pull, Clock min_clock) const {
    for (const ActiveLife& life : active_) ExpectVisible(life, pull.chunk, min_clock);
    if (pull.clock == kNoClock) return;
    if (const ActiveLife* own = FindActive(pull.life)) {
      ExpectVisible(*own, pull.chunk, pull.clock - 1);
    }
    if (options_.mode == ConsistencyMode::kAsp) return;
    EXPECT_GE(min_clock, pull.clock - 1 - options_.staleness);
    for (const ActiveLife& life : active_) {
      ExpectVisible(life, pull.chunk, pull.clock - 1 - options_.staleness);
    }
  }

  // Everyone pushes everything up to one clock, past all that was pushed: nothing may be left
  // waiting, and everything that was counted must be visible.
  void Drain() {
    Clock target = 0;
    for (const auto& push : counted_) target = std::max(target, std::get<Clock>(push));
    for (const ActiveLife& life : active_) {
      for (const Clock next : life.next) target = std::max(target, next + 1);
    }
    const int64_t bound = (target + 1) * static_cast<int64_t>(active_.size() + 1);
    for (int64_t i = 0; i < bound; ++i) {
      for (ActiveLife& life : active_) {
        for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
          if (life.next[chunk] <= target) PushNext(life, chunk);
        }
      }
    }
    for (const ActiveLife& life : active_) {
      for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
        ASSERT_EQ(life.next[chunk], target + 1) << "worker " << life.member.worker << " is stuck";
        Pull({life.member.worker, life.member.incarnation, target + 1, chunk});
      }
    }
    EXPECT_TRUE(open_pulls_.empty()) << "a pull waits for ever";
    EXPECT_EQ(counted_, visible_) << "something that was counted was never applied";
  }

  struct RoundPush {
    std::tuple<uint32_t, WorkerId, Incarnation, Clock> key;
    double weight = 0;
    bool empty = false;
  };
  Random random_;
  ConsistencyOptions options_;
  Consistency machine_;
  ConsistencyModel model_;
  uint64_t version_ = 0;
  uint64_t last_ticket_ = 0;
  std::map<WorkerId, Incarnation> incarnations_;
  std::vector<ActiveLife> active_;
  std::map<uint64_t, OpenPull> open_pulls_;
  std::set<std::tuple<uint32_t, WorkerId, Incarnation, Clock>> counted_, visible_;
  std::map<std::pair<uint32_t, Clock>, std::vector<RoundPush>> in_round_;
};

class ConsistencyPropertyTest : public ::testing::TestWithParam<ConsistencyMode> {};

TEST_P(ConsistencyPropertyTest, AgreesWithTheModelAndKeepsThePromises) {
  for (const uint64_t seed : SeedsToRun(2000)) {
    SCOPED_TRACE("SLACKLINE_SEED=" + std::to_string(seed));
    Random random(seed);
    ConsistencyOptions options{.mode = GetParam(),
                               .chunk_count = static_cast<uint32_t>(1 + random.Below(3)),
                               .max_members = 8,
                               .first_clock = random.Between(0, 3)};
    if (GetParam() == ConsistencyMode::kSsp) options.staleness = random.Between(1, 4);
    History(random.Next(), options).Run(200);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ConsistencyPropertyTest,
                         ::testing::Values(ConsistencyMode::kBsp, ConsistencyMode::kSsp,
                                           ConsistencyMode::kAsp),
                         [](const auto& info) {
                           switch (info.param) {
                             case ConsistencyMode::kBsp:
                               return "Bsp";
                             case ConsistencyMode::kSsp:
                               return "Ssp";
                             case ConsistencyMode::kAsp:
                               return "Asp";
                           }
                           return "Unknown";
                         });

}  // namespace
}  // namespace slackline::server
