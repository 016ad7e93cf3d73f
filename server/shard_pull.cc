// Pulls: opened, released or refused by the consistency rule, and answered from the chunk's live
// copy, which stays pinned until the transport is done with it.
#include <glog/logging.h>

#include "server/shard.h"

namespace slackline::server {

using proto::MessageKind;
using proto::ReplyStatus;
using proto::WireHeader;

uint64_t Shard::OpenPull(Peer* peer, const WireHeader& header, uint32_t local, ReplyStatus status) {
  SupersedePull(*peer, header, local);
  const uint32_t index = requests_->Take();
  if (index == kNoRequest) {
    ++refused_;
    AnswerPlain(*peer, header, ReplyStatus::kBusy);
    return 0;
  }
  OpenRequest& entry = requests_->at(index);
  Chunk& chunk = store_->at(local);
  entry.state = OpenRequest::State::kWaiting;
  entry.status = status;
  entry.local = local;
  entry.peer = peer;
  entry.header = header;
  entry.next = chunk.waiting;
  chunk.waiting = index;
  const uint64_t ticket = requests_->TicketOf(index);
  const Clock wanted = header.kind == MessageKind::kPushPull ? header.clock + 1 : header.clock;
  consistency_->OnPull({header.worker, header.incarnation, wanted, local}, ticket, &decisions_);
  return ticket;
}

// A life has one open pull a chunk; a newer one is a resend, or a caller that gave up the old one.
void Shard::SupersedePull(const Peer& peer, const WireHeader& header, uint32_t local) {
  for (uint32_t index = store_->at(local).waiting; index != kNoRequest;
       index = requests_->at(index).next) {
    const OpenRequest& entry = requests_->at(index);
    if (entry.header.worker != header.worker || entry.header.incarnation != header.incarnation) {
      continue;
    }
    const bool same_request = entry.peer == &peer && entry.header.request_id == header.request_id;
    if (!same_request) AnswerPlain(*entry.peer, WireHeader(entry.header), ReplyStatus::kBusy);
    DropRequest(index);
    return;
  }
}

// Ends a request without an answer: takes it out of its list, unpins or forgets what it held.
void Shard::DropRequest(uint32_t index) {
  OpenRequest& entry = requests_->at(index);
  Chunk& chunk = store_->at(entry.local);
  uint32_t* link = &chunk.waiting;
  if (entry.state == OpenRequest::State::kWaiting) {
    consistency_->DropPull(requests_->TicketOf(index), entry.local);
  } else if (entry.state == OpenRequest::State::kReducing) {
    link = &chunk.reductions[entry.header.round].waiting;
  } else {
    CHECK(entry.state == OpenRequest::State::kSending) << "held pushes are dropped by their list";
    --*entry.pins;
    --sending_count_;
    link = &entry.peer->sending;
  }
  uint32_t previous = kNoRequest;
  while (*link != index) {
    CHECK(*link != kNoRequest) << "an open request is missing from its list";
    previous = *link;
    link = &requests_->at(*link).next;
  }
  *link = entry.next;
  if (entry.state == OpenRequest::State::kSending && entry.peer->sending_tail == index) {
    entry.peer->sending_tail = previous;
  }
  requests_->Free(index);
}

void Shard::RunDecisions(const LastPush& last) {
  for (size_t i = 0; i < decisions_.size(); ++i) {
    const Decision decision = decisions_[i];
    if (decision.chunk >= ChunkCount()) continue;  // This shard has no chunks.
    if (decision.kind == Decision::Kind::kCloseRound) {
      // Only the round that the push itself belongs to, always the first, may use its payload.
      CloseRound(decision, i == 0 ? last : LastPush{});
      continue;
    }
    const uint32_t index = requests_->FindTicket(decision.ticket);
    if (index == kNoRequest) continue;  // Its channel closed while decisions were carried out.
    if (decision.kind == Decision::Kind::kRelease) {
      AnswerWeights(index, decision.min_clock);
    } else {
      ++refused_;
      const WireHeader header = requests_->at(index).header;
      const Peer& peer = *requests_->at(index).peer;
      DropRequest(index);
      AnswerPlain(peer, header, ReplyStatus::kNotInView);
    }
  }
  decisions_.clear();
}

void Shard::AnswerWeights(uint32_t index, Clock min_clock) {
  const OpenRequest& entry = requests_->at(index);
  Chunk& chunk = store_->at(entry.local);
  WireHeader reply;
  reply.codec = chunk.pull_codec.id();
  reply.version = chunk.version;
  reply.min_clock = min_clock;
  ConstBytes payload(chunk.copies[chunk.live], chunk.CopyBytes());
  uint32_t* pins = &chunk.pins[chunk.live];
  if (Published& published = chunk.published; published.in_use()) {
    const auto deltas = published.DeltasFrom(entry.header.version, chunk.version, payload.size());
    if (!deltas) {
      reply.codec = CodecId::kFp32;  // The whole reference.
    } else if (*deltas == 0) {
      payload = {};  // The reader holds it.
    } else {
      const uint64_t first = chunk.version - *deltas + 1;
      payload = {published.Delta(first), *deltas * published.delta_bytes};
      pins = &published.pins[published.SlotOf(first)];
    }
  }
  ReplyPinned(index, pins, reply, payload);
}

// Answers a request of a chunk's or a round's list with memory that stays pinned until it has left.
// `reply` holds what is of the payload's kind; the rest is filled in here.
void Shard::ReplyPinned(uint32_t index, uint32_t* pins, WireHeader reply, ConstBytes payload) {
  OpenRequest& entry = requests_->at(index);
  Chunk& chunk = store_->at(entry.local);
  uint32_t* link = entry.state == OpenRequest::State::kReducing
                       ? &chunk.reductions[entry.header.round].waiting
                       : &chunk.waiting;
  while (*link != index) {
    CHECK(*link != kNoRequest) << "an open request is missing from its list";
    link = &requests_->at(*link).next;
  }
  *link = entry.next;

  Peer& peer = *entry.peer;
  entry.state = OpenRequest::State::kSending;
  entry.pins = pins;
  entry.next = kNoRequest;
  entry.since = time_.NowNs();
  ++*pins;
  ++sending_count_;
  if (peer.sending == kNoRequest) {
    peer.sending = index;
  } else {
    requests_->at(peer.sending_tail).next = index;
  }
  peer.sending_tail = index;

  reply.kind = MessageKind::kReply;
  reply.status = entry.status;
  reply.request_id = entry.header.request_id;
  reply.epoch = epoch_;
  reply.clock = entry.header.clock;
  reply.worker = entry.header.worker;
  reply.incarnation = entry.header.incarnation;
  reply.chunk = entry.header.chunk;
  reply.payload_bytes = static_cast<uint32_t>(payload.size());
  reply.trace_id = entry.header.trace_id;
  bytes_out_ += reply.payload_bytes;
  if (backups_) backups_->Keep(*store_, entry.local, peer.worker);
  const uint64_t ticket = requests_->TicketOf(index);
  const Status status = peer.channel->Reply(reply, payload);
  // The call may have closed the channel and dropped the request with it.
  if (!status.ok() && requests_->FindTicket(ticket) == index) DropRequest(index);
}

void Shard::AnswerPlain(const Peer& peer, const WireHeader& request, ReplyStatus status) {
  WireHeader reply;
  reply.kind = MessageKind::kReply;
  reply.status = status;
  reply.request_id = request.request_id;
  reply.epoch = epoch_;
  reply.clock = request.clock;
  reply.worker = request.worker;
  reply.incarnation = request.incarnation;
  reply.chunk = request.chunk;
  reply.round = request.round;
  reply.trace_id = request.trace_id;
  // If the channel just broke, its close is on the way and says so.
  static_cast<void>(peer.channel->Reply(reply, {}));
}

void Shard::OnReplySent(transport::Channel& channel, uint64_t request_id) {
  const Peer* peer = PeerOf(channel);
  if (peer == nullptr) return;
  for (uint32_t index = peer->sending; index != kNoRequest; index = requests_->at(index).next) {
    if (requests_->at(index).header.request_id != request_id) continue;
    DropRequest(index);
    // Progress: the next reply's time to leave begins when it is the first in line.
    if (peer->sending != kNoRequest) requests_->at(peer->sending).since = time_.NowNs();
    break;
  }
  Settle();
}

}  // namespace slackline::server
