// Stalls: every wait says what for, and ends.
#include <algorithm>

#include "worker/client/client_core.h"

namespace slackline::worker {

namespace {

std::string Seconds(TimeNs duration_ns) {
  const TimeNs tenths = duration_ns / (kNsPerSecond / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

bool IsPush(const proto::WireHeader& header) {
  return header.kind == proto::MessageKind::kPushPull || header.kind == proto::MessageKind::kPush;
}

}  // namespace

void ClientCore::CheckStall(TimeNs now_ns) {
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_) {
    if (slot.state == Slot::State::kIdle) continue;
    if (oldest == nullptr || slot.submitted_ns < oldest->submitted_ns) oldest = &slot;
  }
  if (oldest == nullptr) {
    stall_check_ns_ = kNever;
    return;
  }
  const TimeNs timeout_ns = oldest->submitted_ns + options_.stall_timeout_ns;
  if (now_ns >= timeout_ns) {
    Fail(DeadlineExceeded("gave up: " + DescribeWait(*oldest, now_ns)));
    return;
  }
  const TimeNs report_ns =
      std::max(oldest->submitted_ns, last_report_ns_) + options_.stall_report_ns;
  if (now_ns < report_ns) {
    stall_check_ns_ = std::min(report_ns, timeout_ns);
    return;
  }
  last_report_ns_ = now_ns;
  stall_check_ns_ = std::min(now_ns + options_.stall_report_ns, timeout_ns);
  events_.OnWaiting(DescribeWait(*oldest, now_ns));
}

std::string ClientCore::DescribeWait(const Slot& slot, TimeNs now_ns) const {
  const Link& link = links_[slot.shard];
  return "waiting " + Seconds(now_ns - slot.submitted_ns) + " for chunk " +
         std::to_string(slot.header.chunk) + " of shard " + std::to_string(link.shard) + " (" +
         map_.shard_addresses[link.shard] + ") at clock " + std::to_string(slot.header.clock) +
         ": " + DescribePhase(slot, link, now_ns) + "; " + std::to_string(open_requests_) + " of " +
         std::to_string(slots_.size()) + " chunks are open";
}

std::string ClientCore::DescribePhase(const Slot& slot, const Link& link, TimeNs now_ns) const {
  switch (link.state) {
    case Link::State::kBackoff:
      return "the connection is lost (" + link.last_error.ToString() + "), attempt " +
             std::to_string(link.attempts + 1) + " in " +
             Seconds(std::max<TimeNs>(0, link.deadline_ns - now_ns));
    case Link::State::kConnecting:
      return "reconnecting, attempt " + std::to_string(link.attempts + 1) +
             (link.last_error.ok() ? "" : "; lost before: " + link.last_error.ToString());
    case Link::State::kGreeting:
      return "connected, the shard has not answered hello";
    case Link::State::kOpen:
      break;
  }
  switch (slot.state) {
    case Slot::State::kReady:
    case Slot::State::kResend:
      return "not sent, " + std::to_string(link.credit_used_bytes) +
             " bytes are on their way and the shard has not taken them (credit: " +
             std::to_string(options_.credit_bytes) + " bytes)";
    case Slot::State::kPaused:
      return slot.wait_for_map ? "the shard has another map than epoch " +
                                     std::to_string(map_.epoch) + ", waiting for the new one"
                               : "the shard is busy, it will be asked again";
    case Slot::State::kSent:
      if (IsPush(slot.header) && slot.header.payload_bytes > 0) {
        return "the push is sent, the shard has not taken it";
      }
      [[fallthrough]];
    case Slot::State::kTaken: {
      const std::string clock =
          link.last_min_clock == kNoClock ? "not known yet" : std::to_string(link.last_min_clock);
      return std::string(slot.state == Slot::State::kTaken ? "the shard has taken the push"
                                                           : "the shard was asked") +
             ", the weights are not released: a slower worker is behind (all workers' clock in "
             "the last answer: " +
             clock + ")";
    }
    case Slot::State::kIdle:
      break;
  }
  return "idle";
}

}  // namespace slackline::worker
