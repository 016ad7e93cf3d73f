// Arithmetic on chunks: rounds are summed, steps are taken, each in one pass over memory.
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/codec/array_math.h"
#include "server/shard.h"

namespace slackline::server {

using proto::WireHeader;

namespace {

// Who encodes, for codecs that round or choose at random: no worker.
constexpr WorkerId kPublisher = UINT32_MAX;

}  // namespace

// True when the chunk's weights may change now: no checkpoint waits for the old ones, and a copy
// that is not being sent can take the new ones.
bool Shard::Changeable(uint32_t local) {
  const Chunk& chunk = store_->at(local);
  if (chunk.cut_pending && !CutChunk(local)) return false;
  return chunk.WritableCopy().has_value();
}

void Shard::ApplyAsync(const Push& push) {
  GradientView gradient;
  const ChunkCodec& codec = store_->at(push.local).push_codec;
  if (codec.dense() != nullptr && !backups_) {
    gradient.payload = PayloadOf(push);
    gradient.payload_codec = codec.id();
    gradient.payload_scale = 1 / push.header->scale;
  } else {
    codec.Decode(PayloadOf(push), push.header->scale, push.header->clock, decoded_.data());
    gradient.sum = decoded_.data();
  }
  gradient.scale = static_cast<float>(1 / push.header->weight);
  const auto members = static_cast<double>(consistency_->view().members.size());
  // Delayed Nesterov divides by its period itself.
  const bool whole = job_.async_scale_sum || job_.optimizer.kind == OptimizerKind::kDelayedNesterov;
  double rate = LearningRate(job_.schedule, push.header->clock) / (whole ? 1.0 : members);
  const uint64_t version = store_->at(push.local).version;
  if (job_.staleness_rate) {
    const uint64_t read = std::min(push.header->version, version);
    rate /= StalenessDivisor(version - read, consistency_->view().members.size());
  }
  if (backups_) Compensate(push, std::exchange(gradient.scale, 1.0f));
  Step(push.local, gradient, rate);
}

void Shard::Compensate(const Push& push, float scale) {
  const Chunk& chunk = store_->at(push.local);
  ScaleArray(decoded_.data(), chunk.count, scale);
  const float* read = backups_->Find(push.local, push.header->worker, push.header->version);
  if (read == nullptr) return;
  CompensateDelay(chunk.master, read, job_.delay_compensation, chunk.count, decoded_.data());
}

void Shard::Accumulate(const Push& push) {
  Chunk& chunk = store_->at(push.local);
  const WireHeader& header = *push.header;
  // The first push writes the sum, so that it need not be cleared before.
  if (chunk.sum_pushes++ == 0) {
    chunk.push_codec.Decode(PayloadOf(push), header.scale, header.clock, chunk.sum);
  } else {
    chunk.push_codec.DecodeAdd(PayloadOf(push), header.scale, header.clock, chunk.sum);
  }
}

void Shard::AddLeaf(const Push& push, bool empty) {
  std::vector<Leaf>& leaves = leaves_[push.local];
  const Leaf leaf{push.header->worker, leaves.size()};
  CHECK(leaf.buffer < store_->leaf_capacity()) << "a round has more pushes than the view allows";
  float* out = store_->leaf(push.local, leaf.buffer);
  const Chunk& chunk = store_->at(push.local);
  if (empty) {
    std::fill_n(out, chunk.count, 0.0f);
  } else {
    chunk.push_codec.Decode(PayloadOf(push), push.header->scale, push.header->clock, out);
  }
  const auto after =
      std::upper_bound(leaves.begin(), leaves.end(), leaf,
                       [](const Leaf& a, const Leaf& b) { return a.worker < b.worker; });
  leaves.insert(after, leaf);
}

// An empty push is a leaf of zeros: the tree's shape depends on who takes part, not on who
// overflowed.
const float* Shard::SumLeaves(uint32_t local) {
  leaf_scratch_.clear();
  for (const Leaf& leaf : leaves_[local]) leaf_scratch_.push_back(store_->leaf(local, leaf.buffer));
  TreeSum(leaf_scratch_, store_->at(local).count);
  return leaf_scratch_.front();
}

void Shard::CloseRound(const Decision& decision, const LastPush& last) {
  Chunk& chunk = store_->at(decision.chunk);
  GradientView gradient;
  if (job_.deterministic) {
    if (decision.weight_sum > 0) gradient.sum = SumLeaves(decision.chunk);
    leaves_[decision.chunk].clear();
  } else {
    if (chunk.sum_pushes > 0) gradient.sum = chunk.sum;
    gradient.payload = last.payload;
    gradient.payload_codec = last.payload == nullptr ? CodecId::kNone : chunk.push_codec.id();
    gradient.payload_scale = last.payload_scale;
    chunk.sum_pushes = 0;
  }
  if (decision.weight_sum > 0) {
    CHECK(gradient.sum != nullptr || gradient.payload != nullptr)
        << "a round of weight " << decision.weight_sum << " has no gradient";
    gradient.scale = static_cast<float>(1 / decision.weight_sum);
    Step(decision.chunk, gradient, LearningRate(job_.schedule, decision.clock));
  }
  OnRoundClosedForCut(decision.chunk, decision.clock);
}

void Shard::Step(uint32_t local, const GradientView& gradient, double learning_rate) {
  Chunk& chunk = store_->at(local);
  const std::optional<uint32_t> target = chunk.WritableCopy();
  CHECK(target && !chunk.cut_pending) << "callers ask Changeable before they change a chunk";
  const Codec* const pull = job_.pull_plan.dense();
  const bool fp32_pull = pull != nullptr && pull->id() == CodecId::kFp32;
  float* out = fp32_pull ? reinterpret_cast<float*>(chunk.copies[*target]) : chunk.master;
  ++chunk.steps;
  for (const ChunkRun& run : chunk.runs) {
    ParameterView view;
    view.weights = chunk.master + run.offset;
    view.weights_out = out + run.offset;
    if (chunk.slots[0] != nullptr) view.slot0 = chunk.slots[0] + run.offset;
    if (chunk.slots[1] != nullptr) view.slot1 = chunk.slots[1] + run.offset;
    view.count = run.count;
    view.decay = run.decay;
    if (pull != nullptr && !fp32_pull) {
      view.copy_out = chunk.copies[*target] + pull->EncodedBytes(run.offset);
      view.copy_codec = pull->id();
    }
    GradientView part = gradient;
    if (part.sum != nullptr) part.sum += run.offset;
    if (part.payload != nullptr) part.payload += chunk.push_codec.dense()->EncodedBytes(run.offset);
    optimizer_->Step(view, part, static_cast<float>(learning_rate), chunk.steps);
  }
  chunk.master = out;
  if (chunk.published.in_use()) Publish(&chunk, *target);
  chunk.live = *target;
  ++chunk.version;
}

// The step from the reference to the new master, and with it the next reference, into the copy
// `target`.
void Shard::Publish(Chunk* chunk, uint32_t target) {
  Published& published = chunk->published;
  const uint64_t version = chunk->version + 1;
  const size_t bytes = chunk->count * sizeof(float);
  auto* const reference = reinterpret_cast<float*>(chunk->copies[target]);
  if (target != chunk->live) std::memcpy(reference, chunk->copies[chunk->live], bytes);
  for (size_t i = 0; i < chunk->count; ++i) decoded_[i] = chunk->master[i] - reference[i];
  std::byte* const delta = published.Delta(version);
  const EncodeStats stats = chunk->pull_codec.Encode(
      decoded_.data(), 1,
      {.worker = kPublisher, .clock = static_cast<int64_t>(version), .chunk = chunk->index},
      nullptr, delta);
  if (stats.non_finite > 0) {
    // Training has diverged, which readers must see: no delta can say so.
    std::memcpy(reference, chunk->master, bytes);
    published.oldest = version;
    return;
  }
  chunk->pull_codec.DecodeAdd(delta, 1, 0, reference);
  std::memcpy(delta + published.slots * published.delta_bytes, delta, published.delta_bytes);
}

void Shard::SetWeights(uint32_t local, const float* weights) {
  Chunk& chunk = store_->at(local);
  std::memcpy(chunk.master, weights, chunk.count * sizeof(float));
  if (chunk.published.in_use()) {
    std::memcpy(chunk.copies[chunk.live], weights, chunk.count * sizeof(float));
    chunk.published.oldest = 1;
  } else if (chunk.pull_codec.id() != CodecId::kFp32) {
    static_cast<void>(
        chunk.pull_codec.Encode(chunk.master, 1, {}, nullptr, chunk.copies[chunk.live]));
  }
  if (!chunk.initialised) ++initialised_chunks_;
  chunk.initialised = true;
  chunk.version = 1;
}

}  // namespace slackline::server
