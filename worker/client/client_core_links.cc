// Links: connecting, hello, losing, the look for life.
#include <algorithm>
#include <utility>

#include "worker/client/client_core.h"

namespace slackline::worker {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;

// Open requests keep their order: what was sent goes again first, shard by shard of the old map.
void ClientCore::BuildLinks(const CoreMap& map) {
  CloseAll();
  std::vector<Link> old = std::move(links_);
  map_ = map;
  slots_.resize(map.chunk_shard.size());
  links_ = std::vector<Link>(map.shard_addresses.size());
  for (ShardIndex shard = 0; shard < links_.size(); ++shard) links_[shard].shard = shard;
  for (ChunkIndex chunk = 0; chunk < slots_.size(); ++chunk) {
    Slot& slot = slots_[chunk];
    Link& link = links_[map.chunk_shard[chunk]];
    slot.shard = link.shard;
    slot.number = static_cast<uint32_t>(link.chunks.size());
    slot.header.epoch = map.epoch;
    link.chunks.push_back(chunk);
  }
  for (Link& link : links_) link.ready = ReadySet(link.chunks.size());
  for (Link& link : old) {
    for (SlotList* list : {&link.sent, &link.resend, &link.paused}) {
      while (!list->empty()) {
        const ChunkIndex chunk = list->front();
        list->Remove(slots_, chunk);
        slots_[chunk].state = Slot::State::kResend;
        links_[slots_[chunk].shard].resend.PushBack(slots_, chunk);
      }
    }
  }
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::kReady) links_[slot.shard].ready.Insert(slot.number);
  }
}

void ClientCore::Connect(Link& link) {
  const std::string& address = map_.shard_addresses[link.shard];
  Result<transport::Channel*> channel = endpoint_.Connect(address, options_.connect_timeout_ns);
  if (!channel) {
    if (channel.error().code() == StatusCode::kInvalidArgument) {
      Fail(InvalidArgument("shard " + std::to_string(link.shard) + ": " +
                           channel.error().message()));
    } else {
      LoseLink(link, channel.error(), /*closed=*/true);
    }
    return;
  }
  link.channel = *channel;
  link.channel->set_context(&link);
  link.state = Link::State::kConnecting;
}

void ClientCore::OnOpened(transport::Channel& channel) {
  Link& link = *static_cast<Link*>(channel.context());
  link.state = Link::State::kGreeting;
  link.deadline_ns = time_.NowNs() + options_.connect_timeout_ns;
  if (const Status sent = SendHello(link); !sent.ok()) LoseLink(link, sent, /*closed=*/false);
}

void ClientCore::OnClosed(transport::Channel& channel, const Status& status) {
  LoseLink(*static_cast<Link*>(channel.context()), status, /*closed=*/true);
}

Status ClientCore::SendHello(Link& link) {
  const WireHeader hello{.kind = MessageKind::kHello,
                         .request_id = kHelloRequestId,
                         .epoch = map_.epoch,
                         .worker = options_.worker,
                         .incarnation = options_.incarnation};
  return link.channel->Send(hello, {}, {});
}

void ClientCore::OnHelloReply(Link& link, const WireHeader& header) {
  link.probing = false;
  if (header.status == ReplyStatus::kNotInView) {
    Fail(Aborted("shard " + std::to_string(link.shard) + " does not know worker " +
                 std::to_string(options_.worker) + " (incarnation " +
                 std::to_string(options_.incarnation) +
                 "): it is not in the view (any more); start over to join again"));
    return;
  }
  if (header.status != ReplyStatus::kOk && header.status != ReplyStatus::kDuplicate) {
    const bool map_changed = header.status == ReplyStatus::kMapChanged;
    LoseLink(link,
             Unavailable("the shard answered hello with " +
                         std::string(proto::ReplyStatusName(header.status))),
             /*closed=*/false);
    if (map_changed) events_.OnMapNeeded(map_.epoch);
    return;
  }
  if (link.state != Link::State::kGreeting) return;  // The answer to a probe.
  link.state = Link::State::kOpen;
  link.attempts = 0;
  link.deadline_ns = time_.NowNs() + options_.probe_ns;
  ++links_open_;
  ++stats_.links_opened;
  Pump(link);
  if (all_open()) events_.OnAllOpen();
}

// `closed`: the channel is gone already. Otherwise Close() is the fence: only after it may the same
// landing memory be named in a resend.
void ClientCore::LoseLink(Link& link, const Status& status, bool closed) {
  if (link.channel != nullptr && !closed) link.channel->Close();
  link.channel = nullptr;
  if (link.state == Link::State::kOpen) --links_open_;
  link.probing = false;
  link.heard = false;
  link.silent_looks = 0;
  link.moved_bytes = 0;
  link.last_error = status;
  link.credit_used_bytes = 0;
  link.open = 0;
  for (ChunkIndex chunk = link.sent.front(); chunk != kNoSlot; chunk = slots_[chunk].links.next) {
    slots_[chunk].state = Slot::State::kResend;
  }
  link.resend.PrependAll(slots_, link.sent);
  const uint32_t doublings = std::min(link.attempts, 16U);
  ++link.attempts;
  ++stats_.links_lost;
  link.state = Link::State::kBackoff;
  link.deadline_ns = time_.NowNs() + Jittered(std::min(options_.backoff_min_ns << doublings,
                                                       options_.backoff_max_ns));
  events_.OnLinkLost(link.shard, link.attempts, status);
}

void ClientCore::TickLink(Link& link, TimeNs now_ns) {
  while (!link.paused.empty() && slots_[link.paused.front()].resume_ns <= now_ns) {
    const ChunkIndex chunk = link.paused.front();
    link.paused.Remove(slots_, chunk);
    slots_[chunk].state = Slot::State::kResend;
    link.resend.PushBack(slots_, chunk);
  }
  Pump(link);
  if (now_ns < link.deadline_ns) return;
  switch (link.state) {
    case Link::State::kBackoff:
      Connect(link);
      return;
    case Link::State::kConnecting:
      return;
    case Link::State::kGreeting:
      LoseLink(link, DeadlineExceeded("connected, but hello was not answered"), /*closed=*/false);
      return;
    case Link::State::kOpen:
      LookForLife(link, now_ns);
      return;
  }
}

// A peer that vanished without a word (its host lost power) leaves a connection that looks open. A
// hello that goes unanswered finds out, and costs nothing while answers, or parts of them, flow.
void ClientCore::LookForLife(Link& link, TimeNs now_ns) {
  link.deadline_ns = now_ns + options_.probe_ns;
  const uint64_t moved_bytes = link.channel->bytes_moved();
  const bool alive = link.heard || moved_bytes != link.moved_bytes;
  link.heard = false;
  link.moved_bytes = moved_bytes;
  if (alive || link.open == 0) {
    link.silent_looks = 0;
    return;
  }
  if (++link.silent_looks > 1) {
    LoseLink(link, DeadlineExceeded("the shard was silent for too long"), /*closed=*/false);
    return;
  }
  // One that went out earlier may still be unanswered, behind a large payload: it serves as well.
  if (std::exchange(link.probing, true)) return;
  if (const Status sent = SendHello(link); !sent.ok()) LoseLink(link, sent, /*closed=*/false);
}

void ClientCore::CloseAll() {
  for (Link& link : links_) {
    if (link.channel != nullptr) link.channel->Close();
    link.channel = nullptr;
  }
  links_open_ = 0;
}

// Half fixed, half random, so that workers cut together do not come back together.
TimeNs ClientCore::Jittered(TimeNs pause_ns) {
  const TimeNs half = pause_ns / 2;
  return half + static_cast<TimeNs>(rng_.Below(static_cast<uint64_t>(half) + 1));
}

}  // namespace slackline::worker
