// Set-up, channels and time; what a push or pull does is in the other shard_*.cc.
#include "server/shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

namespace slackline::server {
namespace {

inline constexpr size_t kMaxOpenRequestsPerShard = 65536;
inline constexpr uint32_t kStrangerChannels = 8;  // Reconnects, scanners, people with netcat.
inline constexpr uint32_t kMinReceiveSlots = 8;

ShardOptions WithDefaults(ShardOptions options) {
  const uint32_t workers = std::max(options.expected_workers, 1u);
  if (options.max_channels == 0) options.max_channels = 2 * workers + kStrangerChannels;
  if (options.receive_slots == 0) options.receive_slots = std::max(2 * workers, kMinReceiveSlots);
  return options;
}

Result<View> ParseView(const control::View& in) {
  View view;
  view.version = in.version();
  for (const control::Member& member : in.members()) {
    if (member.first_clock() < 0) {
      return Err(InvalidArgument("view " + std::to_string(in.version()) + ": worker " +
                                 std::to_string(member.worker()) + " has first clock " +
                                 std::to_string(member.first_clock()) + "; expected >= 0"));
    }
    view.members.push_back({member.worker(), member.incarnation(), member.first_clock()});
  }
  std::sort(view.members.begin(), view.members.end(),
            [](const Member& a, const Member& b) { return a.worker < b.worker; });
  return view;
}

}  // namespace

Shard::Shard(transport::Endpoint& endpoint, const TimeSource& time, const ShardOptions& options)
    : endpoint_(endpoint), time_(time), options_(WithDefaults(options)) {
  peers_.resize(options_.max_channels);
  requests_ = std::make_unique<OpenRequests>(
      std::min(kMaxOpenRequestsPerShard, peers_.size() * transport::kMaxOpenRequests));
  waiting_for_slot_.reserve(peers_.size());
  held_limit_ = std::max<size_t>(options_.receive_slots / 2, 1);
  held_.reserve(held_limit_);
}

Shard::~Shard() {
  if (cut_.sink != nullptr) FinishCut(Aborted("the shard ended"));
}

Status Shard::InstallMap(const control::ShardMap& map) {
  if (map.epoch() <= epoch_) return OkStatus();
  if (store_) {
    if (!store_->SameLayout(map, options_.shard)) {
      return FailedPrecondition("shard " + std::to_string(options_.shard) + ": shard map epoch " +
                                std::to_string(map.epoch()) +
                                " moves chunks of a running shard, which is not offered");
    }
    epoch_ = map.epoch();
    return OkStatus();
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(job_, ParseShardJob(map.job()));
  if (map.job().optimizer().period() == 0) {
    job_.optimizer.period = std::max(options_.expected_workers, 1u);
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(optimizer_, Optimizer::Create(job_.optimizer));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(slot_names_, SlotNames(map.job()));
  SLACKLINE_RETURN_IF_ERROR(AllocateTables(map));
  epoch_ = map.epoch();
  return TryInstallPendingView();
}

Status Shard::AllocateTables(const control::ShardMap& map) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      std::unique_ptr<ChunkStore> store,
      ChunkStore::Create(endpoint_, map, options_.shard, job_, optimizer_->slot_count()));
  // A slot takes any push and any kInit, which is always FP32.
  const size_t slot_bytes =
      std::max({store->max_push_bytes(), store->max_count() * sizeof(float), sizeof(float)});
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      slots_, ReceiveSlots::Create(endpoint_, options_.receive_slots, slot_bytes));
  ConsistencyOptions rule;
  rule.mode = job_.mode;
  rule.staleness = job_.staleness;
  // The rule wants one; a shard without chunks keeps the view in it and ignores what it decides.
  rule.chunk_count = std::max(static_cast<uint32_t>(store->size()), 1u);
  rule.max_members = options_.max_members;
  rule.first_clock = map.first_clock();
  rule.quorum = job_.quorum;
  rule.grace_ns = job_.grace_ns;
  rule.last_clock = job_.last_clock;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(consistency_, Consistency::Create(rule));
  const bool decodes = job_.push_plan.dense() == nullptr || job_.delay_compensation > 0;
  if ((decodes && job_.mode != ConsistencyMode::kBsp) || job_.pull_plan.dense() == nullptr) {
    decoded_.resize(store->max_count());
  }
  if (job_.delay_compensation > 0) {
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(
        backups_, WeightBackups::Create(endpoint_, *store, options_.expected_workers));
    LOG(INFO) << "shard " << options_.shard << ": delay compensation keeps "
              << backups_->size_bytes() << " bytes, a copy of the weights for each of "
              << options_.expected_workers << " workers";
  }
  leaves_.resize(job_.deterministic ? store->size() : 0);
  // The most decisions that one event can cause: a view closes every round and releases or refuses
  // every open pull.
  decisions_.reserve(store->size() + requests_->size());
  store_ = std::move(store);
  return OkStatus();
}

Status Shard::InstallView(const control::View& in) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(View view, ParseView(in));
  if (view.version <= view_version()) return OkStatus();
  if (pending_view_ && view.version <= pending_view_->version) return OkStatus();
  pending_view_ = std::move(view);
  busy_ = true;
  CloseReadersThatLeft(*pending_view_);
  const Status status = TryInstallPendingView();
  busy_ = false;
  Settle();
  return status;
}

Status Shard::TryInstallPendingView() {
  if (!pending_view_ || !consistency_ || ViewMustWait()) return OkStatus();
  const View view = std::move(*pending_view_);
  pending_view_.reset();
  if (job_.deterministic) SLACKLINE_RETURN_IF_ERROR(ReserveLeavesFor(view));
  if (job_.quorum > 0) consistency_->OnTime(time_.NowNs());
  SLACKLINE_RETURN_IF_ERROR(consistency_->OnView(view, &decisions_));
  RunDecisions({});
  for (uint32_t local = 0; local < ChunkCount(); ++local) SettleReductions(local);
  return OkStatus();
}

// Replies that a removed life does not read would keep their copies: nobody waits for the dead.
void Shard::CloseReadersThatLeft(const View& view) {
  for (Peer& peer : peers_) {
    if (peer.channel == nullptr || peer.sending == kNoRequest) continue;
    const bool stays = std::ranges::any_of(view.members, [&](const Member& member) {
      return member.worker == peer.worker && member.incarnation == peer.incarnation;
    });
    if (stays) continue;
    LOG(INFO) << "shard " << options_.shard << ": closing " << peer.channel->peer() << ": worker "
              << peer.worker << " left with replies unread";
    ClosePeer(&peer);
  }
}

// A view can close rounds, which changes chunks; decisions cannot be put off once they are made.
bool Shard::ViewMustWait() {
  if (job_.mode != ConsistencyMode::kBsp) return false;
  for (uint32_t local = 0; local < ChunkCount(); ++local) {
    if (!Changeable(local)) return true;
  }
  return false;
}

Status Shard::ReserveLeavesFor(const View& view) {
  size_t leaves_of_departed = 0;
  for (const std::vector<Leaf>& leaves : leaves_) {
    leaves_of_departed = std::max(leaves_of_departed, leaves.size());
  }
  const size_t needed = view.members.size() + leaves_of_departed;
  SLACKLINE_RETURN_IF_ERROR(store_->ReserveLeaves(endpoint_, needed));
  for (std::vector<Leaf>& leaves : leaves_) leaves.reserve(needed);
  leaf_scratch_.reserve(needed);
  return OkStatus();
}

uint64_t Shard::view_version() const { return consistency_ ? consistency_->view().version : 0; }

Status Shard::RestoreChunk(const ChunkRestore& restore) {
  const std::optional<uint32_t> local =
      store_ ? store_->FindLocal(restore.chunk) : std::optional<uint32_t>();
  if (!local) {
    return InvalidArgument("restore: chunk " + std::to_string(restore.chunk) + " is not on shard " +
                           std::to_string(options_.shard));
  }
  Chunk& chunk = store_->at(*local);
  if (restore.count != chunk.count || restore.slots.size() != optimizer_->slot_count()) {
    return InvalidArgument("restore: chunk " + std::to_string(restore.chunk) + " has " +
                           std::to_string(restore.count) + " elements and " +
                           std::to_string(restore.slots.size()) + " optimizer slots; expected " +
                           std::to_string(chunk.count) + " and " +
                           std::to_string(optimizer_->slot_count()));
  }
  SetWeights(*local, restore.weights);
  for (size_t i = 0; i < restore.slots.size(); ++i) {
    std::copy_n(restore.slots[i], chunk.count, chunk.slots[i]);
  }
  chunk.version = restore.version;
  chunk.steps = restore.steps;
  if (chunk.published.in_use()) {
    chunk.published.oldest = restore.version;
    if (restore.reference != nullptr) {
      std::memcpy(chunk.copies[chunk.live], restore.reference, chunk.count * sizeof(float));
    }
  }
  return OkStatus();
}

TimeNs Shard::CheckInterval() const {
  return std::min(options_.hello_timeout_ns, options_.stalled_reader_timeout_ns) / 4;
}

void Shard::OnTick(TimeNs now) {
  if (now >= next_check_at_) {
    CloseStalledPeers(now);
    next_check_at_ = now + CheckInterval();
  }
  ContinueCut();
  CloseDueRounds();
  Settle();
}

void Shard::CloseDueRounds() {
  if (job_.quorum == 0 || !consistency_ || busy_) return;
  consistency_->OnTime(time_.NowNs());
  busy_ = true;
  for (uint32_t local = 0; local < ChunkCount(); ++local) {
    if (!consistency_->Due(local) || !Changeable(local)) continue;
    consistency_->CloseDue(local, &decisions_);
    RunDecisions({});
  }
  busy_ = false;
}

TimeNs Shard::NextDeadline() const {
  if (cut_.ready) return 0;
  const bool watched =
      sending_count_ > 0 || std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return peer.channel != nullptr && !peer.greeted;
      });
  // What is due already waits for a copy or a checkpoint's buffer, whose return calls OnTick.
  const TimeNs due = job_.quorum > 0 && consistency_ ? consistency_->NextDue() : kNever;
  return std::min(watched ? next_check_at_ : kNever, due);
}

void Shard::CloseStalledPeers(TimeNs now) {
  for (Peer& peer : peers_) {
    if (peer.channel == nullptr) continue;
    const bool silent = !peer.greeted && now - peer.opened_at > options_.hello_timeout_ns;
    const bool stalled = peer.sending != kNoRequest && now - requests_->at(peer.sending).since >
                                                           options_.stalled_reader_timeout_ns;
    if (!silent && !stalled) continue;
    LOG(WARNING) << "shard " << options_.shard << ": closing " << peer.channel->peer() << ": "
                 << (silent ? "it did not say hello" : "it does not read its replies");
    ClosePeer(&peer);
  }
}

control::ShardReport Shard::Report() const {
  control::ShardReport report;
  report.set_shard(options_.shard);
  report.set_epoch(epoch_);
  report.set_view_version(view_version());
  report.set_chunks(ChunkCount());
  report.set_chunks_initialised(initialised_chunks_);
  report.set_pushes(pushes_);
  report.set_bytes_in(bytes_in_);
  report.set_bytes_out(bytes_out_);
  report.set_refused(refused_);
  report.set_min_clock(kNoClock);
  if (ChunkCount() == 0) return report;
  std::vector<LifeClock> lives;
  consistency_->AppendLives(&lives);
  for (const LifeClock& life : lives) {
    control::WorkerClock* clock = report.add_worker_clocks();
    clock->set_worker(life.worker);
    clock->set_incarnation(life.incarnation);
    clock->set_highest(life.highest);
  }
  Clock min_clock = INT64_MAX;
  for (uint32_t local = 0; local < ChunkCount(); ++local) {
    min_clock = std::min(min_clock, consistency_->MinClock(local));
  }
  report.set_min_clock(min_clock);
  return report;
}

void Shard::OnOpened(transport::Channel& channel) {
  const auto free = std::find_if(peers_.begin(), peers_.end(),
                                 [](const Peer& peer) { return peer.channel == nullptr; });
  if (free == peers_.end()) {
    LOG(WARNING) << "shard " << options_.shard << ": closing " << channel.peer() << ": all "
                 << peers_.size() << " channels are in use";
    channel.Close();
    return;
  }
  *free = Peer{};
  free->channel = &channel;
  free->opened_at = time_.NowNs();
  channel.set_context(&*free);
}

Peer* Shard::PeerOf(transport::Channel& channel) const {
  return static_cast<Peer*>(channel.context());
}

void Shard::OnClosed(transport::Channel& channel, const Status& /*status*/) {
  Peer* peer = PeerOf(channel);
  if (peer == nullptr) return;  // It was turned away.
  ForgetPeer(peer);
  Settle();
}

void Shard::ClosePeer(Peer* peer) {
  // Close is the fence: no payload memory is touched after it, and nothing reuses any before.
  transport::Channel* channel = peer->channel;
  ForgetPeer(peer);
  channel->Close();
}

void Shard::ForgetPeer(Peer* peer) {
  std::erase_if(held_, [this, peer](uint32_t index) {
    if (requests_->at(index).peer != peer) return false;
    FreeSlot(requests_->at(index).slot);
    requests_->Free(index);
    return true;
  });
  for (uint32_t index = 0; index < requests_->size(); ++index) {
    if (requests_->at(index).peer == peer) DropRequest(index);
  }
  if (slots_) slots_->FreeUnfilled(peer);
  std::erase(waiting_for_slot_, peer);
  peer->channel->set_context(nullptr);
  *peer = Peer{};
}

void Shard::Settle() {
  const bool nothing_waits = held_.empty() && waiting_for_slot_.empty() && !pending_view_;
  if (busy_ || nothing_waits) return;
  busy_ = true;
  if (pending_view_) {
    const Status status = TryInstallPendingView();
    LOG_IF(ERROR, !status.ok()) << "shard " << options_.shard << ": " << status;
  }
  for (size_t i = 0; i < held_limit_ && RetryOneHeld(); ++i) {
  }
  busy_ = false;
  ResumeChannels();
}

void Shard::ResumeChannels() {
  // Those that must wait again queue behind the others, and are not asked twice here.
  const size_t waiting = waiting_for_slot_.size();
  for (size_t i = 0; i < waiting && !waiting_for_slot_.empty(); ++i) {
    if (slots_->free_count() == 0) return;
    Peer* peer = waiting_for_slot_.front();
    waiting_for_slot_.erase(waiting_for_slot_.begin());
    peer->waits_for_slot = false;
    peer->channel->ResumeReceiving();
  }
}

void Shard::LogRefusal(const Peer& peer, const proto::WireHeader& header, std::string_view why) {
  const TimeNs now = time_.NowNs();
  if (now - last_log_at_ < options_.log_interval_ns) {
    ++logs_suppressed_;
    return;
  }
  LOG(WARNING) << "shard " << options_.shard << ": refused " << proto::Describe(header) << " from "
               << peer.channel->peer() << ": " << why << " (" << logs_suppressed_
               << " more since the last such line)";
  last_log_at_ = now;
  logs_suppressed_ = 0;
}

}  // namespace slackline::server
