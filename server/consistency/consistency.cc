#include "server/consistency/consistency.h"

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

namespace slackline::server {
namespace {

std::string Name(const Member& member) {
  return "worker " + std::to_string(member.worker) + " (incarnation " +
         std::to_string(member.incarnation) + ")";
}

Status CheckReplaces(const Member& member, const LifeClock& last) {
  if (member.incarnation <= last.incarnation) {
    return InvalidArgument(Name(member) + " is not newer than the worker's last incarnation " +
                           std::to_string(last.incarnation));
  }
  if (member.first_clock <= last.highest) {
    return InvalidArgument(Name(member) + " starts at clock " + std::to_string(member.first_clock) +
                           ", expected more than " + std::to_string(last.highest) +
                           ", which its predecessor reached");
  }
  return OkStatus();
}

}  // namespace

std::string_view PushActionName(PushAction action) {
  switch (action) {
    case PushAction::kApply:
      return "APPLY";
    case PushAction::kAccumulate:
      return "ACCUMULATE";
    case PushAction::kDuplicate:
      return "DUPLICATE";
    case PushAction::kEarly:
      return "EARLY";
    case PushAction::kNotInView:
      return "NOT_IN_VIEW";
    case PushAction::kRoundClosed:
      return "ROUND_CLOSED";
    case PushAction::kSkipsClock:
      return "SKIPS_CLOCK";
  }
  return "UNKNOWN";
}

Result<Consistency> Consistency::Create(const ConsistencyOptions& options) {
  if (options.mode == ConsistencyMode::kBsp && options.staleness != 0) {
    return Err(InvalidArgument("BSP has staleness 0, found " + std::to_string(options.staleness)));
  }
  if (options.mode == ConsistencyMode::kSsp && options.staleness <= 0) {
    return Err(InvalidArgument("SSP needs a staleness above 0, found " +
                               std::to_string(options.staleness)));
  }
  if (options.quorum > 0 && options.mode != ConsistencyMode::kBsp) {
    return Err(InvalidArgument("a quorum is of BSP's rounds: it needs staleness 0"));
  }
  if (options.grace_ns < 0) return Err(InvalidArgument("a grace cannot be below 0"));
  if (options.chunk_count == 0) return Err(InvalidArgument("a shard needs at least one chunk"));
  if (options.max_members == 0) return Err(InvalidArgument("max_members must be above 0"));
  if (options.first_clock < 0) {
    return Err(InvalidArgument("expected a first clock of at least 0, found " +
                               std::to_string(options.first_clock)));
  }
  return Consistency(options);
}

Consistency::Consistency(const ConsistencyOptions& options) : options_(options) {
  rounds_.resize(options.chunk_count, Round{.clock = options.first_clock});
  departed_.reserve(kDepartedPerMember * options.max_members);
}

// ---- Membership ----

Status Consistency::OnView(const View& view, std::vector<Decision>* decisions) {
  if (view.version <= view_.version) return OkStatus();
  SLACKLINE_RETURN_IF_ERROR(ValidateView(view));
  Reseat(view, decisions);
  for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
    if (options_.mode == ConsistencyMode::kBsp) CloseRounds(chunk, decisions);
    ReleasePulls(chunk, decisions);
  }
  return OkStatus();
}

Status Consistency::ValidateView(const View& view) const {
  if (view.members.size() > options_.max_members) {
    return InvalidArgument("the view has " + std::to_string(view.members.size()) +
                           " members, expected at most " + std::to_string(options_.max_members));
  }
  for (size_t i = 0; i < view.members.size(); ++i) {
    const Member& member = view.members[i];
    if (i > 0 && view.members[i - 1].worker >= member.worker) {
      return InvalidArgument("the view's members are not sorted by worker, or one is doubled, at " +
                             Name(member));
    }
    if (member.incarnation == 0 || member.first_clock < 0) {
      return InvalidArgument(
          "expected an incarnation above 0 and a first clock of at least 0 for " + Name(member) +
          ", found clock " + std::to_string(member.first_clock));
    }
    if (FindSlot(member.worker, member.incarnation) != kNoSlot) continue;  // It stays.
    const auto now = std::find_if(view_.members.begin(), view_.members.end(),
                                  [&](const Member& m) { return m.worker == member.worker; });
    if (now != view_.members.end()) {
      const auto slot = static_cast<size_t>(now - view_.members.begin());
      SLACKLINE_RETURN_IF_ERROR(
          CheckReplaces(member, {now->worker, now->incarnation, highest_[slot]}));
    } else if (const LifeClock* last = FindDeparted(member.worker)) {
      SLACKLINE_RETURN_IF_ERROR(CheckReplaces(member, *last));
    }
  }
  return OkStatus();
}

void Consistency::Reseat(const View& view, std::vector<Decision>* decisions) {
  const size_t count = view.members.size();
  View next = view;
  std::vector<size_t> old_slots(count, kNoSlot);
  std::vector<bool> stays(view_.members.size(), false);
  std::vector<Clock> next_highest(count, kNoClock);
  for (size_t slot = 0; slot < count; ++slot) {
    Member& member = next.members[slot];
    const size_t old = FindSlot(member.worker, member.incarnation);
    old_slots[slot] = old;
    next_highest[slot] = old == kNoSlot ? member.first_clock - 1 : highest_[old];
    if (old == kNoSlot) continue;
    member.first_clock = view_.members[old].first_clock;
    stays[old] = true;
  }

  std::vector<Seat> next_seats(count * options_.chunk_count);
  for (uint32_t chunk = 0; chunk < options_.chunk_count; ++chunk) {
    const std::span<const Seat> old_seats = std::as_const(*this).seats(chunk);
    for (size_t old = 0; old < old_seats.size(); ++old) {
      const Seat& seat = old_seats[old];
      if (stays[old] || !seat.pull_open) continue;
      decisions->push_back({.kind = Decision::Kind::kRefuse,
                            .chunk = chunk,
                            .clock = seat.pull_clock,
                            .ticket = seat.pull_ticket});
    }
    for (size_t slot = 0; slot < count; ++slot) {
      Seat& seat = next_seats[chunk * count + slot];
      if (old_slots[slot] != kNoSlot) {
        seat = old_seats[old_slots[slot]];
        continue;
      }
      const Clock first = next.members[slot].first_clock;
      seat.takes_part_from = options_.mode == ConsistencyMode::kBsp && !has_quorum()
                                 ? std::max(first, rounds_[chunk].clock)
                                 : first;
      seat.watermark = seat.takes_part_from - 1;
    }
  }

  for (size_t old = 0; old < stays.size(); ++old) {
    const Member& member = view_.members[old];
    if (!stays[old]) RememberDeparted({member.worker, member.incarnation, highest_[old]});
  }
  view_ = std::move(next);
  highest_ = std::move(next_highest);
  seats_ = std::move(next_seats);
}

void Consistency::RememberDeparted(const LifeClock& life) {
  std::erase_if(departed_, [&](const LifeClock& other) { return other.worker == life.worker; });
  if (departed_.size() == kDepartedPerMember * options_.max_members) {
    departed_.erase(departed_.begin());
  }
  departed_.push_back(life);
}

const LifeClock* Consistency::FindDeparted(WorkerId worker) const {
  const auto found = std::find_if(departed_.begin(), departed_.end(),
                                  [&](const LifeClock& life) { return life.worker == worker; });
  return found == departed_.end() ? nullptr : &*found;
}

size_t Consistency::FindSlot(WorkerId worker, Incarnation incarnation) const {
  const auto found =
      std::lower_bound(view_.members.begin(), view_.members.end(), worker,
                       [](const Member& member, WorkerId id) { return member.worker < id; });
  if (found == view_.members.end() || found->worker != worker ||
      found->incarnation != incarnation) {
    return kNoSlot;
  }
  return static_cast<size_t>(found - view_.members.begin());
}

std::span<Consistency::Seat> Consistency::seats(uint32_t chunk) {
  const size_t count = view_.members.size();
  return std::span<Seat>(seats_).subspan(chunk * count, count);
}

std::span<const Consistency::Seat> Consistency::seats(uint32_t chunk) const {
  const size_t count = view_.members.size();
  return std::span<const Seat>(seats_).subspan(chunk * count, count);
}

// ---- Pushes ----

PushAction Consistency::Classify(const PushId& id, size_t slot) const {
  CHECK_LT(id.chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  if (slot == kNoSlot) return PushAction::kNotInView;
  const Seat& seat = seats(id.chunk)[slot];
  if (id.clock < view_.members[slot].first_clock) return PushAction::kSkipsClock;
  if (id.clock < seat.takes_part_from) return PushAction::kRoundClosed;
  if (id.clock <= seat.watermark) return PushAction::kDuplicate;
  if (id.clock > seat.watermark + 1) return PushAction::kSkipsClock;
  if (options_.mode != ConsistencyMode::kBsp) return PushAction::kApply;
  const Clock open = rounds_[id.chunk].clock;
  const bool early = has_quorum() ? seat.joined_round == open : id.clock > open;
  return early ? PushAction::kEarly : PushAction::kAccumulate;
}

PushAction Consistency::Preview(const PushId& id) const {
  return Classify(id, FindSlot(id.worker, id.incarnation));
}

PushAction Consistency::OnPush(const PushId& id, double weight, bool empty,
                               std::vector<Decision>* decisions) {
  const size_t slot = FindSlot(id.worker, id.incarnation);
  const PushAction action = Classify(id, slot);
  if (action != PushAction::kApply && action != PushAction::kAccumulate) return action;

  seats(id.chunk)[slot].watermark = id.clock;
  highest_[slot] = std::max(highest_[slot], id.clock);
  if (action == PushAction::kAccumulate) {
    Round& round = rounds_[id.chunk];
    CHECK(has_quorum() || round.clock == id.clock) << "a push was accumulated into another round";
    seats(id.chunk)[slot].joined_round = round.clock;
    ++round.recorded;
    if (!empty) {
      ++round.non_empty;
      round.weight_sum += weight;
    }
    CloseRounds(id.chunk, decisions);
  }
  ReleasePulls(id.chunk, decisions);
  return action;
}

bool Consistency::RoundComplete(uint32_t chunk) const {
  const Round& round = rounds_[chunk];
  const std::span<const Seat> members = seats(chunk);
  // Without members nobody waits for the chunk; only what was pushed is settled.
  if (members.empty()) return round.recorded > 0;
  // A seat's watermark before it takes part is just below takes_part_from: a later joiner does not
  // hold up this round.
  return std::all_of(members.begin(), members.end(),
                     [&](const Seat& seat) { return seat.watermark >= round.clock; });
}

Clock Consistency::NextOwedRound(uint32_t chunk) const {
  Clock next = INT64_MAX;
  for (const Seat& seat : seats(chunk)) next = std::min(next, seat.watermark + 1);
  return next == INT64_MAX ? rounds_[chunk].clock : std::max(next, rounds_[chunk].clock);
}

void Consistency::CloseRounds(uint32_t chunk, std::vector<Decision>* decisions) {
  Round& round = rounds_[chunk];
  const auto close_through = [&](Clock clock) {
    decisions->push_back({.kind = Decision::Kind::kCloseRound,
                          .chunk = chunk,
                          .clock = clock,
                          .weight_sum = round.weight_sum,
                          .pushes = round.non_empty,
                          .min_clock = clock});
    round = Round{.clock = clock + 1};
  };
  if (has_quorum()) {
    if (QuorumComplete(chunk)) close_through(round.clock);
    return;
  }
  if (!RoundComplete(chunk)) return;
  if (round.recorded > 0) close_through(round.clock);
  // What is left before the first owed round concerns only joiners that start later.
  const Clock next = NextOwedRound(chunk);
  if (next > round.clock) close_through(next - 1);
}

// ---- A quorum ----

bool Consistency::QuorumComplete(uint32_t chunk) {
  Round& round = rounds_[chunk];
  if (round.recorded == 0) return false;
  const std::span<const Seat> members = seats(chunk);
  const bool may_grow = std::any_of(members.begin(), members.end(), [&](const Seat& seat) {
    return seat.joined_round != round.clock && seat.watermark < options_.last_clock;
  });
  if (!may_grow) return true;
  if (round.recorded < options_.quorum) return false;
  if (round.grace_end_ns == kNever) round.grace_end_ns = now_ns_ + options_.grace_ns;
  return Due(chunk);
}

void Consistency::CloseDue(uint32_t chunk, std::vector<Decision>* decisions) {
  CloseRounds(chunk, decisions);
  ReleasePulls(chunk, decisions);
}

TimeNs Consistency::NextDue() const {
  TimeNs next = kNever;
  for (const Round& round : rounds_) {
    if (round.grace_end_ns > now_ns_) next = std::min(next, round.grace_end_ns);
  }
  return next;
}

Clock Consistency::Settled(const Seat& seat, uint32_t chunk) const {
  return has_quorum() && seat.joined_round == rounds_[chunk].clock ? seat.watermark - 1
                                                                   : seat.watermark;
}

// ---- Pulls ----

void Consistency::OnPull(const PushId& id, uint64_t ticket, std::vector<Decision>* decisions) {
  CHECK_LT(id.chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  const size_t slot = FindSlot(id.worker, id.incarnation);
  if (slot == kNoSlot) {
    decisions->push_back(
        {.kind = Decision::Kind::kRefuse, .chunk = id.chunk, .clock = id.clock, .ticket = ticket});
    return;
  }
  Seat& seat = seats(id.chunk)[slot];
  seat.pull_clock = id.clock;
  seat.pull_ticket = ticket;
  seat.pull_open = true;
  ReleasePulls(id.chunk, decisions);
}

void Consistency::DropPull(uint64_t ticket, uint32_t chunk) {
  CHECK_LT(chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  for (Seat& seat : seats(chunk)) {
    if (seat.pull_open && seat.pull_ticket == ticket) seat.pull_open = false;
  }
}

bool Consistency::MayRelease(const Seat& seat, uint32_t chunk, Clock min_clock) const {
  if (seat.pull_clock == kNoClock) return true;
  const Clock seen = seat.pull_clock - 1;  // The last clock whose updates the reader may ask for.
  switch (options_.mode) {
    case ConsistencyMode::kBsp:
      return has_quorum() ? Settled(seat, chunk) >= seen : rounds_[chunk].clock > seen;
    case ConsistencyMode::kSsp:
      return min_clock >= seen - options_.staleness && seat.watermark >= seen;
    case ConsistencyMode::kAsp:
      return seat.watermark >= seen;
  }
  return false;
}

void Consistency::ReleasePulls(uint32_t chunk, std::vector<Decision>* decisions) {
  const Clock min_clock = MinClock(chunk);
  for (Seat& seat : seats(chunk)) {
    if (!seat.pull_open || !MayRelease(seat, chunk, min_clock)) continue;
    seat.pull_open = false;
    decisions->push_back({.kind = Decision::Kind::kRelease,
                          .chunk = chunk,
                          .clock = seat.pull_clock,
                          .min_clock = min_clock,
                          .ticket = seat.pull_ticket});
  }
}

// ---- Queries ----

Clock Consistency::MinClock(uint32_t chunk) const {
  CHECK_LT(chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  if (options_.mode == ConsistencyMode::kBsp && !has_quorum()) return rounds_[chunk].clock - 1;
  const std::span<const Seat> members = seats(chunk);
  if (members.empty()) return options_.first_clock - 1;
  Clock slowest = Settled(members.front(), chunk);
  for (const Seat& seat : members) slowest = std::min(slowest, Settled(seat, chunk));
  return slowest;
}

Clock Consistency::Watermark(uint32_t chunk, WorkerId worker, Incarnation incarnation) const {
  CHECK_LT(chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  const size_t slot = FindSlot(worker, incarnation);
  return slot == kNoSlot ? kNoClock : Settled(seats(chunk)[slot], chunk);
}

Clock Consistency::HighestClock(WorkerId worker, Incarnation incarnation) const {
  const size_t slot = FindSlot(worker, incarnation);
  if (slot != kNoSlot) return highest_[slot];
  const LifeClock* last = FindDeparted(worker);
  return last != nullptr && last->incarnation == incarnation ? last->highest : kNoClock;
}

void Consistency::AppendLives(std::vector<LifeClock>* lives) const {
  for (size_t slot = 0; slot < view_.members.size(); ++slot) {
    const Member& member = view_.members[slot];
    lives->push_back({member.worker, member.incarnation, highest_[slot]});
  }
  lives->insert(lives->end(), departed_.begin(), departed_.end());
}

Clock Consistency::OpenRound(uint32_t chunk) const {
  CHECK_LT(chunk, options_.chunk_count) << "the shard maps a chunk before it asks about it";
  return rounds_[chunk].clock;
}

}  // namespace slackline::server
