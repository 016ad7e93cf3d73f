// Which seeds a randomised test runs, so that a failure is replayed by one environment variable:
//   SLACKLINE_SEED=n     runs seed n alone
//   SLACKLINE_SEEDS=n    runs n seeds instead of the test's own number
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace slackline::sim {

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

}  // namespace slackline::sim
