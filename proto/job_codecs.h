// The codecs that a job and its shard map prescribe: what client and shard must agree on.
// Threading: pure functions.
#pragma once

#include "common/codec/chunk_codec.h"
#include "proto/control.pb.h"

namespace slackline::proto {

// Of gradients, and of weights. InvalidArgument names the field, its value and what was expected.
Result<CodecPlan> PushPlan(const control::JobSpec& job);
Result<CodecPlan> PullPlan(const control::JobSpec& job);

// Of a chunk of the map, whose segments name tensors that `map` has. The plan must outlive it.
ChunkCodec MakeChunkCodec(const CodecPlan& plan, const control::Chunk& chunk,
                          const control::ShardMap& map);

}  // namespace slackline::proto
