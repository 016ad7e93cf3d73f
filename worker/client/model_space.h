// The flat parameter space as the worker sees it: tensors laid end to end in declaration order, and
// the chunks that the coordinator cut it into.
// Threading: immutable after Create. Errors: InvalidArgument names the tensor or the chunk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "proto/control.pb.h"
#include "worker/client/client.h"

namespace slackline::worker {

class ModelSpace {
 public:
  struct Range {
    size_t offset = 0;  // Elements from the start of the flat space.
    size_t count = 0;
  };

  // The message that declares these tensors.
  static Result<control::DeclareModel> Declaration(const std::vector<TensorSpec>& tensors);

  // Checks the map against the tensors: the same names and shapes, chunks that cover the flat space
  // once and in order, shards that exist.
  static Result<ModelSpace> Create(std::vector<TensorSpec> tensors, const control::ShardMap& map);

  size_t element_count() const { return element_count_; }
  size_t tensor_count() const { return tensors_.size(); }
  size_t chunk_count() const { return chunks_.size(); }
  Range tensor(size_t tensor) const { return tensors_[tensor]; }
  Range chunk(ChunkIndex chunk) const { return chunks_[chunk]; }
  std::span<const ChunkIndex> tensor_chunks(size_t tensor) const { return tensor_chunks_[tensor]; }
  // By declaration: the first tensors are the first that the next forward needs.
  std::span<const ChunkIndex> chunk_order() const { return chunk_order_; }
  // "'wte', 'wpe'": the tensors that have a part in the chunk.
  std::string TensorNames(ChunkIndex chunk) const;

 private:
  std::vector<std::string> names_;
  std::vector<Range> tensors_;
  std::vector<Range> chunks_;
  std::vector<std::vector<ChunkIndex>> tensor_chunks_;
  std::vector<ChunkIndex> chunk_order_;
  size_t element_count_ = 0;
};

// Whether a newer map has the same chunks (only their shards may change while a job runs).
bool SameChunks(const control::ShardMap& a, const control::ShardMap& b);

}  // namespace slackline::worker
