#include "worker/client/model_space.h"

#include <algorithm>
#include <set>
#include <utility>

#include "proto/wire_header.h"

namespace slackline::worker {

namespace {

// Beyond this no machine holds the space, and products of extents stay far from overflow.
constexpr uint64_t kMaxElements = uint64_t{1} << 40;

Result<size_t> ElementCount(const TensorSpec& tensor) {
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape) {
    if (extent <= 0 || static_cast<uint64_t>(extent) > kMaxElements / count) {
      return Err(InvalidArgument("tensor '" + tensor.name + "': extent " + std::to_string(extent) +
                                 ", expected more than 0 and at most 2^40 elements in all"));
    }
    count *= static_cast<uint64_t>(extent);
  }
  return static_cast<size_t>(count);
}

Status CheckTensors(const std::vector<TensorSpec>& tensors, const control::ShardMap& map) {
  if (static_cast<size_t>(map.tensors_size()) != tensors.size()) {
    return InvalidArgument("this worker declares " + std::to_string(tensors.size()) +
                           " tensors, the cluster's model has " +
                           std::to_string(map.tensors_size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const control::TensorSpec& theirs = map.tensors(static_cast<int>(i));
    if (tensors[i].name != theirs.name() || !std::ranges::equal(tensors[i].shape, theirs.shape())) {
      return InvalidArgument("tensor " + std::to_string(i) + ": this worker declares '" +
                             tensors[i].name + "', the cluster's model has '" + theirs.name() +
                             "' or another shape of it");
    }
  }
  return OkStatus();
}

}  // namespace

Result<control::DeclareModel> ModelSpace::Declaration(const std::vector<TensorSpec>& tensors) {
  if (tensors.empty()) return Err(InvalidArgument("a model needs at least one tensor"));
  control::DeclareModel declaration;
  std::set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      return Err(InvalidArgument("tensor '" + tensor.name + "': names must be unique, not empty"));
    }
    SLACKLINE_ASSIGN_OR_RETURN([[maybe_unused]] const size_t count, ElementCount(tensor));
    control::TensorSpec& spec = *declaration.add_tensors();
    spec.set_name(tensor.name);
    spec.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    spec.set_decay(tensor.decay);
  }
  return declaration;
}

Result<ModelSpace> ModelSpace::Create(std::vector<TensorSpec> tensors,
                                      const control::ShardMap& map) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckTensors(tensors, map));
  ModelSpace space;
  for (TensorSpec& tensor : tensors) {
    SLACKLINE_ASSIGN_OR_RETURN(const size_t count, ElementCount(tensor));
    space.tensors_.push_back({space.element_count_, count});
    space.element_count_ += count;
    space.names_.push_back(std::move(tensor.name));
  }
  size_t next_offset = 0;
  for (int i = 0; i < map.chunks_size(); ++i) {
    const control::Chunk& chunk = map.chunks(i);
    if (chunk.index() != static_cast<uint32_t>(i) || chunk.flat_offset() != next_offset ||
        chunk.count() == 0 || chunk.count() > space.element_count_ - next_offset ||
        chunk.count() > proto::kMaxPayloadBytes / sizeof(float) ||
        chunk.shard() >= static_cast<uint32_t>(map.shard_addresses_size())) {
      return Err(InvalidArgument(
          "the coordinator's shard map is not one: chunk " + std::to_string(i) + " of " +
          std::to_string(map.chunks_size()) + " has index " + std::to_string(chunk.index()) +
          ", offset " + std::to_string(chunk.flat_offset()) + ", " + std::to_string(chunk.count()) +
          " elements, shard " + std::to_string(chunk.shard())));
    }
    space.chunks_.push_back({next_offset, static_cast<size_t>(chunk.count())});
    space.chunk_order_.push_back(chunk.index());
    next_offset += chunk.count();
  }
  if (next_offset != space.element_count_) {
    return Err(InvalidArgument("the coordinator's shard map covers " + std::to_string(next_offset) +
                               " elements, the model has " + std::to_string(space.element_count_)));
  }
  space.tensor_chunks_.resize(space.tensors_.size());
  size_t chunk = 0;
  for (size_t i = 0; i < space.tensors_.size(); ++i) {
    const Range tensor = space.tensors_[i];
    while (space.chunks_[chunk].offset + space.chunks_[chunk].count <= tensor.offset) ++chunk;
    for (size_t k = chunk;
         k < space.chunks_.size() && space.chunks_[k].offset < tensor.offset + tensor.count; ++k) {
      space.tensor_chunks_[i].push_back(static_cast<ChunkIndex>(k));
    }
  }
  return space;
}

std::string ModelSpace::TensorNames(ChunkIndex chunk) const {
  std::string names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!std::ranges::binary_search(tensor_chunks_[i], chunk)) continue;
    if (!names.empty()) names += ", ";
    names += "'" + names_[i] + "'";
  }
  return names;
}

bool SameChunks(const control::ShardMap& a, const control::ShardMap& b) {
  return std::ranges::equal(a.chunks(), b.chunks(),
                            [](const control::Chunk& x, const control::Chunk& y) {
                              return x.flat_offset() == y.flat_offset() && x.count() == y.count();
                            });
}

}  // namespace slackline::worker
