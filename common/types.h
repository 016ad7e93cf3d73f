// The names that every layer shares. They are plain aliases: a header's field and a state machine's
// event use the same words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace slackline {

using WorkerId = uint32_t;             // Global rank of a worker (a local group), 0-based.
using Incarnation = uint32_t;          // Counts the lives of one worker id, from 1. 0 is nobody.
using ChunkIndex = uint32_t;           // Index of a chunk in the job's flat parameter space.
using ShardIndex = uint32_t;           // Global index of a shard over all servers.
using Clock = int64_t;                 // Training step of a worker, from 0.
inline constexpr Clock kNoClock = -1;  // "Nothing yet": the watermark before clock 0.
using Epoch = uint64_t;                // Version of the shard map, from 1.
using TimeNs = int64_t;                // Nanoseconds of a monotonic TimeSource.

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

}  // namespace slackline
