// The rounds of MessageKind::kReduce, which client and shard must read alike.
// Threading: constants.
#pragma once

#include <cstdint>

namespace slackline::proto {

// A clock has this many rounds on a chunk; the number says how contributions are put together.
inline constexpr uint32_t kReduceRounds = 4;
// Rounds below this are sums of FP32 values, in the order of arrival; the others are maxima, which
// do not depend on it.
inline constexpr uint32_t kReduceSumRounds = 2;

inline constexpr bool IsMaximumRound(uint32_t round) { return round >= kReduceSumRounds; }

}  // namespace slackline::proto
