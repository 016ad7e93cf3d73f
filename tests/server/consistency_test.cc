// What the state machine does, case by case. The random comparison against a slow model is in
// consistency_property_test.cc.
#include "server/consistency/consistency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace slackline::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Drives one object; each call returns the decisions of that call alone.
class Machine {
 public:
  Machine(ConsistencyMode mode, Clock staleness, uint32_t chunks = 1, Clock first_clock = 0)
      : machine_(*Consistency::Create({.mode = mode,
                                       .staleness = staleness,
                                       .chunk_count = chunks,
                                       .max_members = 8,
                                       .first_clock = first_clock})) {}

  std::vector<Decision> View(std::vector<Member> members) {
    std::vector<Decision> decisions;
    const Status status = machine_.OnView({++version_, std::move(members)}, &decisions);
    EXPECT_TRUE(status.ok()) << status;
    return decisions;
  }
  Status RefusedView(std::vector<Member> members) {
    std::vector<Decision> decisions;
    const Status status = machine_.OnView({version_ + 1, std::move(members)}, &decisions);
    EXPECT_THAT(decisions, IsEmpty());
    EXPECT_EQ(machine_.view().version, version_);
    return status;
  }
  PushAction Push(const PushId& id, double weight = 1, bool empty = false) {
    decisions_.clear();
    const PushAction preview = machine_.Preview(id);
    const PushAction action = machine_.OnPush(id, weight, empty, &decisions_);
    EXPECT_EQ(preview, action);
    return action;
  }
  std::vector<Decision> Pull(const PushId& id, uint64_t ticket) {
    std::vector<Decision> decisions;
    machine_.OnPull(id, ticket, &decisions);
    return decisions;
  }
  // Of the last Push.
  const std::vector<Decision>& decisions() const { return decisions_; }
  Consistency& operator*() { return machine_; }
  Consistency* operator->() { return &machine_; }

 private:
  Consistency machine_;
  uint64_t version_ = 0;
  std::vector<Decision> decisions_;
};

Decision Close(Clock clock, double weight, uint32_t pushes, uint32_t chunk = 0) {
  return {.kind = Decision::Kind::kCloseRound,
          .chunk = chunk,
          .clock = clock,
          .weight_sum = weight,
          .pushes = pushes,
          .min_clock = clock};
}
Decision Release(uint64_t ticket, Clock clock, Clock min_clock, uint32_t chunk = 0) {
  return {.kind = Decision::Kind::kRelease,
          .chunk = chunk,
          .clock = clock,
          .min_clock = min_clock,
          .ticket = ticket};
}
Decision Refuse(uint64_t ticket, Clock clock, uint32_t chunk = 0) {
  return {.kind = Decision::Kind::kRefuse, .chunk = chunk, .clock = clock, .ticket = ticket};
}

const std::vector<Member> kTwo = {{0, 1, 0}, {1, 1, 0}};

// ---- Options and views ----

TEST(ConsistencyOptionsTest, RefusesWhatDoesNotFit) {
  const auto create = [](ConsistencyMode mode, Clock staleness, uint32_t chunks) {
    return Consistency::Create({.mode = mode, .staleness = staleness, .chunk_count = chunks});
  };
  EXPECT_FALSE(create(ConsistencyMode::kBsp, 1, 1).has_value());
  EXPECT_FALSE(create(ConsistencyMode::kSsp, 0, 1).has_value());
  EXPECT_FALSE(create(ConsistencyMode::kSsp, -1, 1).has_value());
  EXPECT_FALSE(create(ConsistencyMode::kAsp, 0, 0).has_value());
  EXPECT_TRUE(create(ConsistencyMode::kBsp, 0, 1).has_value());
  EXPECT_TRUE(create(ConsistencyMode::kSsp, 3, 1).has_value());
  EXPECT_TRUE(create(ConsistencyMode::kAsp, 0, 1).has_value());
}

TEST(ConsistencyViewTest, RefusesMalformedViewsWhole) {
  Machine m(ConsistencyMode::kSsp, 2);
  m.View(kTwo);
  EXPECT_THAT(m.RefusedView({{1, 1, 0}, {0, 1, 0}}).message(), HasSubstr("sorted"));
  EXPECT_THAT(m.RefusedView({{1, 1, 0}, {1, 2, 0}}).message(), HasSubstr("doubled"));
  EXPECT_THAT(m.RefusedView({{2, 0, 0}}).message(), HasSubstr("incarnation"));
  EXPECT_THAT(m.RefusedView({{2, 1, -1}}).message(), HasSubstr("first clock"));
  std::vector<Member> many;
  for (WorkerId w = 0; w < 9; ++w) many.push_back({w, 1, 0});
  EXPECT_THAT(m.RefusedView(many).message(), HasSubstr("at most 8"));
}

TEST(ConsistencyViewTest, RefusesALifeThatCouldRepeatItsPredecessorsClocks) {
  Machine m(ConsistencyMode::kAsp, 0);
  m.View(kTwo);
  ASSERT_EQ(m.Push({0, 1, 0, 0}), PushAction::kApply);
  ASSERT_EQ(m.Push({0, 1, 1, 0}), PushAction::kApply);
  EXPECT_THAT(m.RefusedView({{0, 2, 1}, {1, 1, 0}}).message(), HasSubstr("reached"));
  m.View({{1, 1, 0}});
  EXPECT_THAT(m.RefusedView({{0, 1, 2}, {1, 1, 0}}).message(), HasSubstr("not newer"));
  EXPECT_THAT(m.RefusedView({{0, 2, 1}, {1, 1, 0}}).message(), HasSubstr("reached"));
  m.View({{0, 2, 2}, {1, 1, 0}});
  EXPECT_EQ(m.Push({0, 1, 2, 0}), PushAction::kNotInView);
  EXPECT_EQ(m.Push({0, 2, 2, 0}), PushAction::kApply);
}

TEST(ConsistencyViewTest, AnOldVersionChangesNothing) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View(kTwo);
  m.View({{0, 1, 0}});
  std::vector<Decision> decisions;
  EXPECT_TRUE(m->OnView({1, kTwo}, &decisions).ok());
  EXPECT_TRUE(m->OnView({2, kTwo}, &decisions).ok());
  EXPECT_EQ(m->view().members.size(), 1u);
}

TEST(ConsistencyViewTest, RemembersTheLastLifeOfThoseThatLeft) {
  Machine m(ConsistencyMode::kAsp, 0, 2);
  m.View(kTwo);
  m.Push({0, 1, 0, 0});
  m.Push({0, 1, 0, 1});
  m.Push({0, 1, 1, 1});
  EXPECT_EQ(m->HighestClock(0, 1), 1);
  EXPECT_EQ(m->Watermark(0, 0, 1), 0);
  m.View({{1, 1, 0}});
  EXPECT_EQ(m->HighestClock(0, 1), 1);
  EXPECT_EQ(m->HighestClock(0, 2), kNoClock);
  EXPECT_EQ(m->Watermark(0, 0, 1), kNoClock);
  m.View({{0, 2, 5}, {1, 1, 0}});
  EXPECT_EQ(m->HighestClock(0, 2), 4);
  m.View({{1, 1, 0}});
  EXPECT_EQ(m->HighestClock(0, 1), kNoClock);
  EXPECT_EQ(m->HighestClock(0, 2), 4);
  std::vector<LifeClock> lives;
  m->AppendLives(&lives);
  ASSERT_EQ(lives.size(), 2u);
  EXPECT_EQ(lives[1].worker, 0u);
  EXPECT_EQ(lives[1].highest, 4);
}

TEST(ConsistencyViewTest, ForgetsTheLivesThatLeftFirst) {
  Machine m(ConsistencyMode::kAsp, 0);
  const auto bound = static_cast<WorkerId>(Consistency::kDepartedPerMember * 8);
  for (WorkerId w = 0; w <= bound; ++w) m.View({{w, 1, 3}});
  m.View({});
  std::vector<LifeClock> lives;
  m->AppendLives(&lives);
  EXPECT_EQ(lives.size(), bound);
  EXPECT_EQ(m->HighestClock(0, 1), kNoClock);
  EXPECT_EQ(m->HighestClock(bound, 1), 2);
}

// ---- BSP ----

TEST(BspTest, ARoundClosesOnceWithTheWeightReceived) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View(kTwo);
  EXPECT_EQ(m.Push({0, 1, 0, 0}, 3), PushAction::kAccumulate);
  EXPECT_THAT(m.decisions(), IsEmpty());
  EXPECT_THAT(m.Pull({0, 1, 1, 0}, 70), IsEmpty());
  EXPECT_EQ(m->MinClock(0), kNoClock);
  EXPECT_EQ(m.Push({1, 1, 0, 0}, 5), PushAction::kAccumulate);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 8, 2), Release(70, 1, 0)));
  EXPECT_THAT(m.Pull({1, 1, 1, 0}, 71), ElementsAre(Release(71, 1, 0)));
  EXPECT_EQ(m->OpenRound(0), 1);
  EXPECT_EQ(m->MinClock(0), 0);
}

TEST(BspTest, EmptyPushesMoveTheRoundAndCarryNoWeight) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View(kTwo);
  m.Push({0, 1, 0, 0}, 3, true);
  m.Push({1, 1, 0, 0}, 5);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 5, 1)));
  m.Push({0, 1, 1, 0}, 3, true);
  m.Push({1, 1, 1, 0}, 5, true);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(1, 0, 0)));
}

TEST(BspTest, ADuplicateIsNotCountedAndItsPullIsAnswered) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View(kTwo);
  m.Push({0, 1, 0, 0});
  EXPECT_EQ(m.Push({0, 1, 0, 0}), PushAction::kDuplicate);
  EXPECT_THAT(m.decisions(), IsEmpty());
  m.Push({1, 1, 0, 0});
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 2, 2)));
  EXPECT_EQ(m.Push({0, 1, 0, 0}), PushAction::kDuplicate);
  EXPECT_THAT(m.Pull({0, 1, 1, 0}, 9), ElementsAre(Release(9, 1, 0)));
}

TEST(BspTest, ALaterRoundsPushIsEarlyUntilTheRoundOpens) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View(kTwo);
  EXPECT_EQ(m.Push({0, 1, 1, 0}), PushAction::kSkipsClock);
  m.Push({0, 1, 0, 0});
  EXPECT_EQ(m.Push({0, 1, 1, 0}), PushAction::kEarly);
  EXPECT_EQ(m.Push({0, 1, 2, 0}), PushAction::kSkipsClock);
  EXPECT_EQ(m->Watermark(0, 0, 1), 0);
  m.Push({1, 1, 0, 0});
  EXPECT_EQ(m.Push({0, 1, 1, 0}), PushAction::kAccumulate);
}

TEST(BspTest, ChunksHaveRoundsOfTheirOwn) {
  Machine m(ConsistencyMode::kBsp, 0, 2);
  m.View(kTwo);
  m.Push({0, 1, 0, 0});
  m.Push({0, 1, 0, 1});
  m.Push({1, 1, 0, 1});
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 2, 2, 1)));
  EXPECT_EQ(m->OpenRound(0), 0);
  EXPECT_EQ(m->OpenRound(1), 1);
}

TEST(BspTest, ALeaversPushStaysInTheOpenRound) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View({{0, 1, 0}, {1, 1, 0}, {2, 1, 0}});
  m.Push({0, 1, 0, 0}, 2);
  m.Pull({0, 1, 1, 0}, 50);
  m.Push({1, 1, 0, 0}, 4);
  m.Pull({1, 1, 1, 0}, 51);
  EXPECT_THAT(m.View({{1, 1, 0}, {2, 1, 0}}), ElementsAre(Refuse(50, 1)));
  m.Push({2, 1, 0, 0}, 8);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 14, 3), Release(51, 1, 0)));
}

TEST(BspTest, NobodyWaitsForTheDead) {
  Machine m(ConsistencyMode::kBsp, 0, 2);
  m.View(kTwo);
  m.Push({0, 1, 0, 1}, 2);
  m.Pull({0, 1, 1, 1}, 60);
  EXPECT_THAT(m.View({{0, 1, 0}}), ElementsAre(Close(0, 2, 1, 1), Release(60, 1, 0, 1)));
  EXPECT_EQ(m->OpenRound(0), 0);
}

TEST(BspTest, TheLastMemberThatLeavesSettlesAStartedRound) {
  Machine m(ConsistencyMode::kBsp, 0, 2);
  m.View(kTwo);
  m.Push({0, 1, 0, 1}, 2);
  EXPECT_THAT(m.View({}), ElementsAre(Close(0, 2, 1, 1)));
  EXPECT_EQ(m->OpenRound(0), 0);
  EXPECT_EQ(m->OpenRound(1), 1);
}

TEST(BspTest, ALaterJoinerOwesNothingBefore) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View({{0, 1, 0}});
  m.View({{0, 1, 0}, {1, 1, 2}});
  m.Push({0, 1, 0, 0}, 1);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(0, 1, 1)));
  EXPECT_EQ(m.Push({1, 1, 1, 0}), PushAction::kSkipsClock);
  EXPECT_EQ(m.Push({1, 1, 2, 0}), PushAction::kEarly);
  EXPECT_THAT(m.Pull({1, 1, 2, 0}, 5), IsEmpty());
  m.Push({0, 1, 1, 0}, 1);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(1, 1, 1), Release(5, 2, 1)));
  m.Push({0, 1, 2, 0}, 1);
  EXPECT_THAT(m.decisions(), IsEmpty());
  m.Push({1, 1, 2, 0}, 1);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(2, 2, 2)));
}

TEST(BspTest, RoundsThatNobodyTakesPartInCloseAtOnce) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View({{0, 1, 0}});
  m.Push({0, 1, 0, 0}, 1);
  EXPECT_THAT(m.View({}), IsEmpty());
  EXPECT_THAT(m.View({{0, 2, 4}}), ElementsAre(Close(3, 0, 0)));
  EXPECT_THAT(m.Pull({0, 2, 4, 0}, 1), ElementsAre(Release(1, 4, 3)));
  m.Push({0, 2, 4, 0}, 1);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(4, 1, 1)));
}

TEST(BspTest, AJoinersMissedRoundsAreRefusedAndItGoesOnAtTheOpenOne) {
  Machine m(ConsistencyMode::kBsp, 0);
  m.View({{0, 1, 0}});
  for (Clock c = 0; c < 3; ++c) m.Push({0, 1, c, 0});
  m.View({{0, 1, 0}, {1, 1, 1}});
  EXPECT_EQ(m.Push({1, 1, 0, 0}), PushAction::kSkipsClock);
  EXPECT_THAT(m.Pull({1, 1, 1, 0}, 1), ElementsAre(Release(1, 1, 2)));
  EXPECT_EQ(m.Push({1, 1, 1, 0}), PushAction::kRoundClosed);
  EXPECT_EQ(m.Push({1, 1, 1, 0}), PushAction::kRoundClosed);
  EXPECT_EQ(m.Push({1, 1, 2, 0}), PushAction::kRoundClosed);
  EXPECT_THAT(m.decisions(), IsEmpty());
  m.Push({0, 1, 3, 0}, 2);
  EXPECT_THAT(m.decisions(), IsEmpty()) << "the joiner takes part in the open round";
  EXPECT_EQ(m.Push({1, 1, 3, 0}, 2), PushAction::kAccumulate);
  EXPECT_THAT(m.decisions(), ElementsAre(Close(3, 4, 2)));
}

TEST(BspTest, StartsAtTheRestoredClock) {
  Machine m(ConsistencyMode::kBsp, 0, 1, 10);
  EXPECT_EQ(m->OpenRound(0), 10);
  EXPECT_EQ(m->MinClock(0), 9);
  EXPECT_THAT(m.View({{0, 1, 10}}), IsEmpty());
  EXPECT_THAT(m.Pull({0, 1, 10, 0}, 1), ElementsAre(Release(1, 10, 9)));
  EXPECT_EQ(m.Push({0, 1, 10, 0}), PushAction::kAccumulate);
}

// ---- SSP ----

TEST(SspTest, AppliesAtOnceAndHoldsReadersAtTheBound) {
  Machine m(ConsistencyMode::kSsp, 2);
  m.View(kTwo);
  // A push at c is answered when everybody pushed c - 2: c = 0 and 1 owe nothing.
  for (Clock c = 0; c < 2; ++c) {
    EXPECT_EQ(m.Push({0, 1, c, 0}), PushAction::kApply);
    EXPECT_THAT(m.Pull({0, 1, c + 1, 0}, 1), ElementsAre(Release(1, c + 1, kNoClock)));
  }
  m.Push({0, 1, 2, 0});
  EXPECT_THAT(m.Pull({0, 1, 3, 0}, 2), IsEmpty());
  m.Push({1, 1, 0, 0});
  EXPECT_THAT(m.decisions(), ElementsAre(Release(2, 3, 0)));
  EXPECT_THAT(m.Pull({1, 1, 1, 0}, 3), ElementsAre(Release(3, 1, 0)));
}

TEST(SspTest, OneSlowWorkerReleasesAllWhoWait) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View({{0, 1, 0}, {1, 1, 0}, {2, 1, 0}});
  for (WorkerId w = 0; w < 2; ++w) {
    for (Clock c = 0; c < 2; ++c) m.Push({w, 1, c, 0});
    EXPECT_THAT(m.Pull({w, 1, 2, 0}, w), IsEmpty());
  }
  m.Push({2, 1, 0, 0});
  EXPECT_THAT(m.decisions(), ElementsAre(Release(0, 2, 0), Release(1, 2, 0)));
}

TEST(SspTest, DuplicatesAndGapsAreRefused) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View(kTwo);
  EXPECT_EQ(m.Push({0, 1, 1, 0}), PushAction::kSkipsClock);
  EXPECT_EQ(m.Push({0, 1, 0, 0}), PushAction::kApply);
  EXPECT_EQ(m.Push({0, 1, 0, 0}), PushAction::kDuplicate);
  EXPECT_EQ(m.Push({0, 1, 2, 0}), PushAction::kSkipsClock);
  EXPECT_EQ(m.Push({0, 2, 1, 0}), PushAction::kNotInView);
  EXPECT_EQ(m.Push({7, 1, 0, 0}), PushAction::kNotInView);
}

TEST(SspTest, AReaderWaitsForItsOwnWrites) {
  Machine m(ConsistencyMode::kSsp, 4);
  m.View(kTwo);
  EXPECT_THAT(m.Pull({0, 1, 1, 0}, 1), IsEmpty());
  m.Push({0, 1, 0, 0}, 1, true);
  EXPECT_THAT(m.decisions(), ElementsAre(Release(1, 1, kNoClock)));
}

TEST(SspTest, ALeaverReleasesThoseWhoWaitedForIt) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View(kTwo);
  for (Clock c = 0; c < 2; ++c) m.Push({0, 1, c, 0});
  EXPECT_THAT(m.Pull({0, 1, 2, 0}, 1), IsEmpty());
  EXPECT_THAT(m.View({{0, 1, 0}}), ElementsAre(Release(1, 2, 1)));
}

TEST(SspTest, AJoinerCountsAsHavingPushedAllBeforeItsFirstClock) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View({{0, 1, 0}});
  for (Clock c = 0; c < 5; ++c) m.Push({0, 1, c, 0});
  m.View({{0, 1, 0}, {1, 1, 4}});
  EXPECT_EQ(m->MinClock(0), 3);
  EXPECT_THAT(m.Pull({1, 1, 4, 0}, 1), ElementsAre(Release(1, 4, 3)));
  EXPECT_THAT(m.Pull({0, 1, 5, 0}, 2), ElementsAre(Release(2, 5, 3)));
  m.Push({0, 1, 5, 0});
  EXPECT_THAT(m.Pull({0, 1, 6, 0}, 3), IsEmpty());
  EXPECT_EQ(m.Push({1, 1, 4, 0}), PushAction::kApply);
  EXPECT_THAT(m.decisions(), ElementsAre(Release(3, 6, 4)));
}

TEST(SspTest, ANewerPullReplacesAnOlderOne) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View(kTwo);
  for (Clock c = 0; c < 2; ++c) m.Push({0, 1, c, 0});
  EXPECT_THAT(m.Pull({0, 1, 2, 0}, 1), IsEmpty());
  EXPECT_THAT(m.Pull({0, 1, 2, 0}, 2), IsEmpty());
  m->DropPull(1, 0);
  m.Push({1, 1, 0, 0});
  EXPECT_THAT(m.decisions(), ElementsAre(Release(2, 2, 0)));
}

TEST(SspTest, ADroppedPullIsNeverAnswered) {
  Machine m(ConsistencyMode::kSsp, 1);
  m.View(kTwo);
  for (Clock c = 0; c < 2; ++c) m.Push({0, 1, c, 0});
  m.Pull({0, 1, 2, 0}, 1);
  m->DropPull(1, 0);
  m.Push({1, 1, 0, 0});
  EXPECT_THAT(m.decisions(), IsEmpty());
}

// ---- ASP, and all ----

TEST(AspTest, NobodyWaitsForAnyone) {
  Machine m(ConsistencyMode::kAsp, 0);
  m.View(kTwo);
  for (Clock c = 0; c < 50; ++c) {
    EXPECT_EQ(m.Push({0, 1, c, 0}), PushAction::kApply);
    EXPECT_THAT(m.Pull({0, 1, c + 1, 0}, 1), ElementsAre(Release(1, c + 1, kNoClock)));
  }
  m.Push({1, 1, 0, 0});
  EXPECT_EQ(m->MinClock(0), 0);
}

TEST(AllModesTest, WhatIsThereNowIsReleasedAtOnceAndStrangersAreRefused) {
  for (const auto& [mode, staleness] : std::vector<std::pair<ConsistencyMode, Clock>>{
           {ConsistencyMode::kBsp, 0}, {ConsistencyMode::kSsp, 1}, {ConsistencyMode::kAsp, 0}}) {
    Machine m(mode, staleness);
    EXPECT_THAT(m.Pull({0, 1, kNoClock, 0}, 1), ElementsAre(Refuse(1, kNoClock)));
    m.View(kTwo);
    EXPECT_THAT(m.Pull({0, 1, kNoClock, 0}, 1), ElementsAre(Release(1, kNoClock, kNoClock)));
    EXPECT_THAT(m.Pull({0, 1, 0, 0}, 2), ElementsAre(Release(2, 0, kNoClock)));
    EXPECT_THAT(m.Pull({0, 2, 0, 0}, 3), ElementsAre(Refuse(3, 0)));
  }
}

}  // namespace
}  // namespace slackline::server
