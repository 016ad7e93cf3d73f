// Which seeds a randomised test runs, so that a failure is replayed by one environment variable:
//   SLACKLINE_SEED=n     runs seed n alone
//   SLACKLINE_SEEDS=n    runs n seeds instead of the test's own number
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace slackline::testing {

inline std::vector<uint64_t> SeedsToRun(uint64_t default_count) {
  if (const char* seed = std::getenv("SLACKLINE_SEED")) {
    return {std::strtoull(seed, nullptr, 10)};
  }
  uint64_t count = default_count;
  if (const char* seeds = std::getenv("SLACKLINE_SEEDS")) {
    count = std::strtoull(seeds, nullptr, 10);
  }
  std::vector<uint64_t> result;
  for (uint64_t seed = 1; seed <= count; ++seed) result.push_back(seed);
  return result;
}

// Small draws from one engine; the same on every platform (std distributions are not).
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Next() { return engine_(); }
  // Uniform in [0, bound); bound > 0. The bias of the modulus does not matter to tests.
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low + 1)));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace slackline::testing
