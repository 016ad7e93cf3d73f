// The shard's part of a checkpoint: when each chunk is cut, and one copy of it for the sink.
#include <cstring>

#include "server/shard.h"

namespace slackline::server {

void Shard::BeginCheckpoint(uint64_t id, Clock clock, bool final, CheckpointSink* sink) {
  if (cut_.sink != nullptr) {
    FinishCut(Aborted("checkpoint " + std::to_string(cut_.id) + " was overtaken by checkpoint " +
                      std::to_string(id)));
  }
  cut_ = Cut{};
  cut_.sink = sink;
  cut_.id = id;
  cut_.clock = clock;
  cut_.at_clock = job_.mode == ConsistencyMode::kBsp && job_.quorum == 0 && !final;
  cut_.left = ChunkCount();
  if (!initialised()) {
    FinishCut(FailedPrecondition("the shard's weights are not initialised"));
    return;
  }
  for (uint32_t local = 0; local < ChunkCount(); ++local) {
    const Clock open_round = cut_.at_clock ? consistency_->OpenRound(local) : 0;
    if (cut_.at_clock && open_round > clock + 1) {
      FinishCut(FailedPrecondition("chunk " + std::to_string(store_->at(local).index) +
                                   " is past clock " + std::to_string(clock) + " already: round " +
                                   std::to_string(open_round) + " is open"));
      return;
    }
    Chunk& chunk = store_->at(local);
    chunk.cut_awaits_round = cut_.at_clock && open_round <= clock;
    if (chunk.cut_awaits_round) continue;
    chunk.cut_pending = true;
    cut_.ready = true;
  }
  if (cut_.left == 0) FinishCut(OkStatus());
}

// A decision may close rounds beyond `clock` with it; nobody took part in those, so the weights are
// still the ones of the cut.
void Shard::OnRoundClosedForCut(uint32_t local, Clock clock) {
  Chunk& chunk = store_->at(local);
  if (!chunk.cut_awaits_round || clock < cut_.clock) return;
  chunk.cut_awaits_round = false;
  chunk.cut_pending = true;
  cut_.ready = true;
}

// False: the sink has no buffer now.
bool Shard::CutChunk(uint32_t local) {
  float* data = cut_.sink->AcquireBuffer();
  if (data == nullptr) {
    cut_.ready = false;
    return false;
  }
  Chunk& chunk = store_->at(local);
  ChunkCut cut;
  cut.chunk = chunk.index;
  cut.count = chunk.count;
  cut.slot_count = slot_names_.size();
  cut.version = chunk.version;
  cut.steps = chunk.steps;
  cut.data = data;
  std::memcpy(data, chunk.master, chunk.count * sizeof(float));
  for (size_t slot = 0; slot < cut.slot_count; ++slot) {
    const void* const from = slot < optimizer_->slot_count()
                                 ? static_cast<const void*>(chunk.slots[slot])
                                 : chunk.copies[chunk.live];  // The reference.
    std::memcpy(data + (1 + slot) * chunk.count, from, chunk.count * sizeof(float));
  }
  for (const Member& member : consistency_->view().members) {
    cut.watermarks.push_back({member.worker, member.incarnation,
                              consistency_->Watermark(local, member.worker, member.incarnation)});
  }
  chunk.cut_pending = false;
  cut_.sink->Submit(std::move(cut));
  if (--cut_.left == 0) FinishCut(OkStatus());
  return true;
}

// Copies one chunk at most, so that requests wait no longer than one copy takes.
void Shard::ContinueCut() {
  if (cut_.sink == nullptr) return;
  cut_.ready = false;
  for (size_t i = 0; i < store_->size(); ++i) {
    const size_t local = (cut_.scan + i) % store_->size();
    if (!store_->at(static_cast<uint32_t>(local)).cut_pending) continue;
    cut_.scan = local;
    // FinishCut may run inside, and clears `ready` for good.
    cut_.ready = true;
    CutChunk(static_cast<uint32_t>(local));
    return;
  }
}

void Shard::FinishCut(const Status& status) {
  CheckpointSink* sink = cut_.sink;
  cut_ = Cut{};
  if (store_) {
    for (Chunk& chunk : store_->chunks()) chunk.cut_pending = chunk.cut_awaits_round = false;
  }
  sink->Finish(status);
}

}  // namespace slackline::server
