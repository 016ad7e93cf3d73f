// BSP with a quorum: the rule step by step, and random histories in handed-in time against the
// rule worked out anew from all that happened. SLACKLINE_SEED=n replays one.
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
#include "tests/sim/seeds.h"

namespace slackline::server {
namespace {

using slackline::sim::SeedsToRun;

ConsistencyOptions Options(uint32_t quorum, TimeNs grace_ns, Clock last_clock) {
  ConsistencyOptions options;
  options.chunk_count = 1;
  options.max_members = 8;
  options.quorum = quorum;
  options.grace_ns = grace_ns;
  options.last_clock = last_clock;
  return options;
}

TEST(ConsistencyQuorum, ANewPushOfALifeWaitsUntilItsLastOneIsInTheWeights) {
  Consistency rule = *Consistency::Create(Options(2, 10, 9));
  std::vector<Decision> decisions;
  ASSERT_TRUE(rule.OnView({1, {{0, 1, 0}, {1, 1, 0}, {2, 1, 0}}}, &decisions).ok());
  EXPECT_EQ(rule.OnPush({0, 1, 0, 0}, 1, false, &decisions), PushAction::kAccumulate);
  EXPECT_EQ(rule.OnPush({0, 1, 0, 0}, 1, false, &decisions), PushAction::kDuplicate);
  EXPECT_EQ(rule.Preview({0, 1, 1, 0}), PushAction::kEarly);
  EXPECT_EQ(rule.Preview({0, 1, 2, 0}), PushAction::kSkipsClock);
  EXPECT_EQ(rule.Watermark(0, 0, 1), kNoClock) << "it is not in the weights yet";
  EXPECT_EQ(rule.OnPush({1, 1, 0, 0}, 1, true, &decisions), PushAction::kAccumulate);
  EXPECT_TRUE(decisions.empty());
  EXPECT_EQ(rule.NextDue(), 10);
  rule.OnTime(10);
  EXPECT_EQ(rule.NextDue(), kNever);
  ASSERT_TRUE(rule.Due(0));
  rule.CloseDue(0, &decisions);
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].weight_sum, 1);
  EXPECT_EQ(decisions[0].pushes, 1u) << "the other one was empty";
  EXPECT_EQ(rule.Watermark(0, 0, 1), 0);
  EXPECT_EQ(rule.Preview({0, 1, 1, 0}), PushAction::kAccumulate);
}

TEST(ConsistencyQuorum, ADepartureMayCompleteARound) {
  Consistency rule = *Consistency::Create(Options(3, 10, 9));
  std::vector<Decision> decisions;
  ASSERT_TRUE(rule.OnView({1, {{0, 1, 0}, {1, 1, 0}, {2, 1, 0}}}, &decisions).ok());
  rule.OnPush({0, 1, 0, 0}, 2, false, &decisions);
  rule.OnPush({1, 1, 0, 0}, 3, false, &decisions);
  ASSERT_TRUE(decisions.empty());
  ASSERT_TRUE(rule.OnView({2, {{0, 1, 0}, {1, 1, 0}}}, &decisions).ok());
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].weight_sum, 5);
}

TEST(ConsistencyQuorum, NeedsBsp) {
  ConsistencyOptions options = Options(2, 10, 9);
  options.mode = ConsistencyMode::kAsp;
  EXPECT_FALSE(Consistency::Create(options).has_value());
  options = Options(2, -1, 9);
  EXPECT_FALSE(Consistency::Create(options).has_value());
}

// One chunk, workers that come and go, and a memory of everything.
class History {
 public:
  explicit History(uint64_t seed)
      : rng_(seed),
        options_(Options(static_cast<uint32_t>(1 + rng_.Below(4)),
                         static_cast<TimeNs>(rng_.Below(50)),
                         static_cast<Clock>(3 + rng_.Below(12)))),
        rule_(*Consistency::Create(options_)) {}

  void Run() {
    for (int i = 0; i < 4; ++i) Join();
    for (int i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) Step();
    Drain();
  }

 private:
  using Key = std::tuple<WorkerId, Incarnation, Clock>;
  struct Life {
    Member member;
    Clock next = 0;
    bool in_open_round = false;
    bool pulls = false;
  };
  struct OpenPush {
    Key key;
    double weight = 0;
    bool empty = false;
  };

  void Step() {
    const uint64_t draw = rng_.Below(100);
    if (draw < 55) {
      if (!lives_.empty()) Push(lives_[rng_.Below(lives_.size())]);
    } else if (draw < 90) {
      Advance(static_cast<TimeNs>(rng_.Below(30)));
    } else if (draw < 95) {
      Leave();
    } else {
      Join();
    }
  }

  void Push(Life& life) {
    if (life.next > options_.last_clock) return;
    const PushId id{life.member.worker, life.member.incarnation, life.next, 0};
    const bool empty = rng_.Below(6) == 0;
    const auto weight = static_cast<double>(1 + rng_.Below(9));
    std::vector<Decision> decisions;
    const PushAction action = rule_.OnPush(id, weight, empty, &decisions);
    if (life.in_open_round) {
      ASSERT_EQ(action, PushAction::kEarly);
      ASSERT_TRUE(decisions.empty());
      return;
    }
    ASSERT_EQ(action, PushAction::kAccumulate) << PushActionName(action);
    const Key key{id.worker, id.incarnation, id.clock};
    ASSERT_TRUE(counted_.insert(key).second);
    open_.push_back({key, empty ? 0 : weight, empty});
    life.in_open_round = true;
    ++life.next;
    if (open_.size() == options_.quorum) quorum_at_ns_ = now_ns_;
    CarryOut(decisions);
    // What its push-pull asks for.
    decisions.clear();
    life.pulls = true;
    rule_.OnPull({id.worker, id.incarnation, id.clock + 1, 0}, id.worker, &decisions);
    CarryOut(decisions);
  }

  void Advance(TimeNs by_ns) {
    now_ns_ += by_ns;
    rule_.OnTime(now_ns_);
    if (rule_.Due(0)) {
      std::vector<Decision> decisions;
      rule_.CloseDue(0, &decisions);
      ASSERT_FALSE(decisions.empty()) << "something was due and is not closed";
      CarryOut(decisions);
    }
    CheckNothingIsOverdue();
  }

  void Join() {
    const auto worker = static_cast<WorkerId>(rng_.Below(6));
    for (const Life& life : lives_) {
      if (life.member.worker == worker) return;
    }
    const Incarnation incarnation = ++incarnations_[worker];
    const Clock first = std::max<Clock>(0, rule_.HighestClock(worker, incarnation - 1) + 1);
    lives_.push_back({.member = {worker, incarnation, first}, .next = first});
    InstallView();
  }
  void Leave() {
    if (lives_.empty()) return;
    lives_.erase(lives_.begin() + static_cast<ptrdiff_t>(rng_.Below(lives_.size())));
    InstallView();
  }
  void InstallView() {
    std::sort(lives_.begin(), lives_.end(),
              [](const Life& a, const Life& b) { return a.member.worker < b.member.worker; });
    View view{++version_, {}};
    for (const Life& life : lives_) view.members.push_back(life.member);
    std::vector<Decision> decisions;
    const Status status = rule_.OnView(view, &decisions);
    ASSERT_TRUE(status.ok()) << status;
    CarryOut(decisions);
    CheckNothingIsOverdue();
  }

  // Whether the open round may close now, worked out from what happened.
  bool MayClose() const {
    if (open_.empty()) return false;
    const bool may_grow = std::any_of(lives_.begin(), lives_.end(), [&](const Life& life) {
      return !life.in_open_round && life.next <= options_.last_clock;
    });
    if (!may_grow) return true;
    return open_.size() >= options_.quorum && now_ns_ >= quorum_at_ns_ + options_.grace_ns;
  }
  void CheckNothingIsOverdue() { ASSERT_FALSE(MayClose()) << "a round should have closed"; }

  void CarryOut(const std::vector<Decision>& decisions) {
    for (const Decision& decision : decisions) {
      if (decision.kind == Decision::Kind::kRefuse) continue;
      if (decision.kind == Decision::Kind::kCloseRound) {
        ASSERT_TRUE(MayClose()) << "a round closed too early";
        ASSERT_EQ(decision.clock, round_++);
        double weight = 0;
        uint32_t pushes = 0;
        std::set<WorkerId> workers;
        for (const OpenPush& push : open_) {
          ASSERT_TRUE(visible_.insert(push.key).second) << "applied twice";
          weight += push.weight;
          pushes += push.empty ? 0 : 1;
        }
        ASSERT_EQ(decision.weight_sum, weight);
        ASSERT_EQ(decision.pushes, pushes);
        open_.clear();
        for (Life& life : lives_) life.in_open_round = false;
        continue;
      }
      const auto life = std::find_if(lives_.begin(), lives_.end(), [&](const Life& candidate) {
        return candidate.member.worker == decision.ticket;
      });
      ASSERT_NE(life, lives_.end());
      ASSERT_TRUE(life->pulls);
      life->pulls = false;
      // It reads all of its own.
      for (Clock clock = life->member.first_clock; clock < decision.clock; ++clock) {
        ASSERT_TRUE(visible_.count({life->member.worker, life->member.incarnation, clock}));
      }
      // And of everyone what min_clock says.
      for (const Life& other : lives_) {
        for (Clock clock = other.member.first_clock; clock <= decision.min_clock; ++clock) {
          ASSERT_TRUE(visible_.count({other.member.worker, other.member.incarnation, clock}));
        }
      }
    }
    for (const Life& life : lives_) {
      ASSERT_TRUE(!life.pulls || life.in_open_round) << "a pull was forgotten";
    }
  }

  // Everyone finishes: nothing may be left waiting, whoever is the last.
  void Drain() {
    for (Clock i = 0; i <= 10 * (options_.last_clock + 1) && !::testing::Test::HasFailure(); ++i) {
      for (Life& life : lives_) Push(life);
      Advance(options_.grace_ns + 1);
    }
    for (const Life& life : lives_) ASSERT_GT(life.next, options_.last_clock) << "stuck";
    if (!lives_.empty()) {
      ASSERT_EQ(counted_, visible_);
    }
  }

  Rng rng_;
  const ConsistencyOptions options_;
  Consistency rule_;
  TimeNs now_ns_ = 0;
  TimeNs quorum_at_ns_ = 0;
  uint64_t version_ = 0;
  Clock round_ = 0;
  std::map<WorkerId, Incarnation> incarnations_;
  std::vector<Life> lives_;
  std::vector<OpenPush> open_;
  std::set<Key> counted_, visible_;
};

TEST(ConsistencyQuorum, KeepsItsPromisesInRandomHistories) {
  for (const uint64_t seed : SeedsToRun(3000)) {
    SCOPED_TRACE("SLACKLINE_SEED=" + std::to_string(seed));
    History(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace slackline::server
