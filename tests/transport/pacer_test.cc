// The throttle's arithmetic, in handed-in time.
#include "transport/pacer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/random.h"

namespace slackline::transport {
namespace {

constexpr double kGbps = 1;  // An eighth of a byte in a nanosecond.

TEST(PacerTest, WithoutALimitEverythingMayMove) {
  Pacer pacer(0);
  EXPECT_FALSE(pacer.limits());
  EXPECT_EQ(pacer.Available(5), SIZE_MAX);
  pacer.Take(1 << 30);
  EXPECT_EQ(pacer.Available(5), SIZE_MAX);
}

TEST(PacerTest, AnIdleLinkSavesUpOneBurstOnly) {
  Pacer pacer(kGbps);
  (void)pacer.Available(0);
  // Nobody waits any more once something was available.
  const size_t burst = static_cast<size_t>(Pacer::kBurstNs / 8);
  EXPECT_EQ(pacer.Available(10 * kNsPerSecond), static_cast<size_t>(Pacer::kMaxBacklogNs / 8));
  EXPECT_EQ(pacer.Available(20 * kNsPerSecond), burst);
  EXPECT_EQ(pacer.Available(90 * kNsPerSecond), burst);
}

TEST(PacerTest, SaysWhenToComeBackAndHasSomethingThen) {
  Pacer pacer(kGbps);
  TimeNs now = kNsPerSecond;
  (void)pacer.Available(now);
  pacer.Take(pacer.Available(now + kNsPerSecond));
  now += kNsPerSecond;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(pacer.Available(now), 0u);
    ASSERT_GT(pacer.ReadyAt(), now);
    ASSERT_LE(pacer.ReadyAt(), now + Pacer::kBurstNs + 2);
    now = pacer.ReadyAt();
    const size_t bytes = pacer.Available(now);
    ASSERT_GT(bytes, 0u);
    pacer.Take(bytes);
  }
}

// Who always has something to send moves the link's rate, whenever it wakes up.
TEST(PacerTest, ABusyLinkCarriesItsRateHoweverLateItsOwnerWakesUp) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    Pacer pacer(kGbps);
    TimeNs now = 0;
    double moved = 0;
    while (now < kNsPerSecond) {
      const size_t bytes = pacer.Available(now);
      if (bytes == 0) {
        now = pacer.ReadyAt() + static_cast<TimeNs>(rng.Below(5'000'000));
        continue;
      }
      pacer.Take(bytes);
      moved += static_cast<double>(bytes);
    }
    const double link = static_cast<double>(now) / 8;
    EXPECT_LE(moved, link + Pacer::kBurstNs / 8) << seed;
    EXPECT_GE(moved, 0.98 * link) << seed;
  }
}

// No window of time carries more than the rate and one burst.
TEST(PacerTest, NoWindowCarriesMoreThanTheLink) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    Pacer pacer(kGbps);
    (void)pacer.Available(0);
    pacer.Take(pacer.Available(kNsPerSecond));
    const TimeNs start = kNsPerSecond;
    TimeNs now = start;
    double moved = 0;
    for (int i = 0; i < 500; ++i) {
      now += static_cast<TimeNs>(rng.Below(2'000'000));  // At times idle, at times late.
      const size_t bytes = std::min(pacer.Available(now), static_cast<size_t>(rng.Below(200'000)));
      pacer.Take(bytes);
      moved += static_cast<double>(bytes);
      ASSERT_LE(moved, static_cast<double>(now - start + Pacer::kBurstNs) / 8 + 1) << seed;
    }
  }
}

}  // namespace
}  // namespace slackline::transport
