// Which way in: listening everywhere, choosing for each peer, remembering what failed.
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "transport/address.h"
#include "transport/auto/auto_endpoint.h"

namespace slackline::transport {
namespace {

// "tcp" of "tcp://host:port".
std::string_view SchemeOf(std::string_view way) { return way.substr(0, way.find("://")); }

// Null: the list has no way of this scheme.
const std::string_view* FindWay(const std::vector<std::string_view>& ways,
                                std::string_view scheme) {
  const auto found = std::find_if(ways.begin(), ways.end(),
                                  [&](std::string_view way) { return SchemeOf(way) == scheme; });
  return found == ways.end() ? nullptr : &*found;
}

}  // namespace

Result<std::string> AutoEndpoint::Listen(std::string_view text) {
  // What a Listen returned names the waiter's port, too: a second listener there is refused by it.
  const std::string_view scheme =
      text.starts_with("auto://") ? "auto" : std::string_view(waiter().member.scheme);
  SLACKLINE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text, scheme));
  // The waiter first: its port is the one that people choose and that firewalls know.
  const auto listen = [&](Slot& slot, uint16_t port) {
    Address at = address;
    at.scheme = slot.member.scheme;
    at.port = port;
    if (!slot.member.host_id.empty()) at.host = slot.member.host_id;
    Result<std::string> result = slot.member.endpoint->Listen(at.ToString());
    if (result) Use(static_cast<size_t>(&slot - slots_.data()));
    return result;
  };
  SLACKLINE_ASSIGN_OR_RETURN(const std::string last, listen(waiter(), address.port));
  SLACKLINE_ASSIGN_OR_RETURN(const Address bound, ParseAddress(last, waiter().member.scheme));
  std::string all;
  for (size_t i = 0; i + 1 < slots_.size(); ++i) {
    if (slots_[i].member.endpoint == nullptr) continue;
    Result<std::string> way = listen(slots_[i], bound.port);
    if (!way && way.error().code() == StatusCode::kAlreadyExists) way = listen(slots_[i], 0);
    if (way) {
      all += *way + ",";
    } else {
      LOG(WARNING) << slots_[i].member.scheme << " is not offered: " << way.error();
    }
  }
  return all + last;
}

Result<Channel*> AutoEndpoint::Connect(std::string_view address, TimeNs timeout_ns) {
  CHECK(handler_ != nullptr) << "set_handler comes first";
  const std::vector<std::string_view> ways = SplitAlternatives(address);
  Peer& peer = Remember(address);
  std::string why;
  SLACKLINE_ASSIGN_OR_RETURN(const size_t member, Choose(peer, ways, &why));
  Slot& slot = slots_[member];
  const std::string_view way = *FindWay(ways, slot.member.scheme);
  SLACKLINE_ASSIGN_OR_RETURN(Channel* const channel,
                             slot.member.endpoint->Connect(way, timeout_ns));
  Use(member);
  if (peer.logged != member) {
    peer.logged = member;
    LOG(INFO) << "transport to " << ways.back() << ": " << slot.member.scheme << " (" << why << ")";
  }
  // A channel that was closed before it opened leaves its attempt behind; another may have its
  // address now.
  std::erase_if(attempts_, [&](const Attempt& attempt) { return attempt.channel == channel; });
  if (attempts_.size() == kMaxRememberedPeers) attempts_.erase(attempts_.begin());
  attempts_.push_back({channel, std::string(address), member});
  return channel;
}

AutoEndpoint::Peer& AutoEndpoint::Remember(std::string_view address) {
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.address == address; });
  if (found != peers_.end()) return *found;
  if (peers_.size() == kMaxRememberedPeers) peers_.erase(peers_.begin());
  peers_.push_back({.address = std::string(address), .failed = std::vector<bool>(slots_.size())});
  return peers_.back();
}

Result<size_t> AutoEndpoint::Choose(const Peer& peer, const std::vector<std::string_view>& ways,
                                    std::string* why) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Member& member = slots_[i].member;
    const std::string_view* way = FindWay(ways, member.scheme);
    std::string passed;
    if (way == nullptr) {
      passed = "the peer does not offer it";
    } else if (member.endpoint == nullptr) {
      passed = member.reason;
    } else if (const Result<Address> at = ParseAddress(*way, member.scheme); !at) {
      return Err(at.error());
    } else if (!member.host_id.empty() && at->host != member.host_id) {
      passed = "another host, network namespace or user";
    } else if (peer.failed[i]) {
      passed = "it failed before";
    } else {
      if (why->empty()) *why = member.reason;
      return i;
    }
    *why += (why->empty() ? "no " : "; no ") + member.scheme + ": " + passed;
  }
  std::string known;
  for (const Slot& slot : slots_) known += (known.empty() ? "" : ", ") + slot.member.scheme;
  return Err(InvalidArgument("'" + std::string(peer.address.substr(0, 160)) +
                             "' has no way in that this end can take (it knows " + known +
                             "): " + *why));
}

void AutoEndpoint::OnOpened(Channel& channel) {
  std::erase_if(attempts_, [&](const Attempt& attempt) { return attempt.channel == &channel; });
  handler_->OnOpened(channel);
}

void AutoEndpoint::OnClosed(Channel& channel, const Status& status) {
  const auto attempt = std::find_if(attempts_.begin(), attempts_.end(),
                                    [&](const Attempt& each) { return each.channel == &channel; });
  if (attempt != attempts_.end()) {
    Peer& peer = Remember(attempt->address);
    peer.failed[attempt->member] = true;
    std::string ignored;
    if (!Choose(peer, SplitAlternatives(peer.address), &ignored)) {
      std::fill(peer.failed.begin(), peer.failed.end(), false);
    }
    attempts_.erase(attempt);
  }
  handler_->OnClosed(channel, status);
}

}  // namespace slackline::transport
