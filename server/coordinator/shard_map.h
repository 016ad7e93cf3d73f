// Cuts the flat parameter space into chunks and spreads them over shards.
//
// Chunks: tensors lie end to end in declaration order. A tensor larger than a chunk is cut into
// even pieces, between rows of its first dimension where a row fits into a chunk, otherwise inside
// each row; then pieces fill chunks in order, a piece that does not fit opens the next chunk. The
// layout is a function of the tensors and the chunk size alone, so that a checkpoint's chunks fit
// any number of shards.
// Shards: by bytes, largest chunk first onto the least loaded shard (Graham's LPT rule: the most
// loaded shard exceeds the least loaded by at most one chunk). Ties go to the lower index.
// Threading: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "proto/control.pb.h"
#include "server/coordinator/job.h"

namespace slackline::server::coordinator {

// The chunks of checked tensors, without shards. InvalidArgument: more than kMaxChunks; names the
// chunk size that would do.
Result<std::vector<control::Chunk>> CutIntoChunks(const Tensors& tensors, uint32_t chunk_bytes);

// The same for a number of shards that each need a chunk: a model that is too small for chunks of
// `chunk_bytes` is cut finer. InvalidArgument: it has fewer elements than there are shards.
Result<std::vector<control::Chunk>> CutForShards(const Tensors& tensors, uint32_t chunk_bytes,
                                                 uint32_t shard_count);

// Whether chunks that were read from a file are a layout of the tensors: every element once, in
// order. DataLoss names the first chunk that is not.
Status CheckLayout(const Tensors& tensors, const std::vector<control::Chunk>& chunks);

// Sets Chunk.shard of every chunk. shard_count > 0.
void AssignToShards(uint32_t shard_count, std::vector<control::Chunk>* chunks);

}  // namespace slackline::server::coordinator
