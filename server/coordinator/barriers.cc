#include "server/coordinator/barriers.h"

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {

Status Barriers::Arrive(const std::string& name, WorkerId worker, uint64_t connection,
                        uint64_t request_id) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidArgument(
        Text("a barrier's name has 1..", kMaxNameBytes, " bytes, this one ", name.size()));
  }
  const auto last = last_release_.find(worker);
  if (last != last_release_.end() && last->second.name == name &&
      last->second.connection != connection) {
    last->second.connection = connection;
    resent_.push_back({worker, request_id, name});
    return OkStatus();
  }
  if (!open_.contains(name) && open_.size() >= kMaxOpenBarriers) {
    return ResourceExhausted(
        Text("barrier '", Printable(name), "': ", kMaxOpenBarriers, " barriers are open already"));
  }
  open_[name][worker] = {connection, request_id};
  return OkStatus();
}

std::vector<Barriers::Release> Barriers::Collect(const std::set<WorkerId>& members) {
  std::vector<Release> releases = std::move(resent_);
  resent_.clear();
  for (auto barrier = open_.begin(); barrier != open_.end();) {
    const auto& [name, arrived] = *barrier;
    bool complete = true;
    for (const WorkerId worker : members) complete = complete && arrived.contains(worker);
    if (!complete) {
      ++barrier;
      continue;
    }
    for (const auto& [worker, arrival] : arrived) {
      releases.push_back({worker, arrival.request_id, name});
      last_release_[worker] = {name, arrival.connection};
    }
    barrier = open_.erase(barrier);
  }
  return releases;
}

void Barriers::Forget(WorkerId worker) {
  last_release_.erase(worker);
  for (auto barrier = open_.begin(); barrier != open_.end();) {
    barrier->second.erase(worker);
    barrier = barrier->second.empty() ? open_.erase(barrier) : std::next(barrier);
  }
}

std::vector<std::string> Barriers::Describe(const std::set<WorkerId>& members) const {
  std::vector<std::string> lines;
  for (const auto& [name, arrived] : open_) {
    std::string missing;
    for (const WorkerId worker : members) {
      if (arrived.contains(worker)) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(worker);
    }
    lines.push_back(Text("barrier '", Printable(name), "': waiting for worker ", missing));
  }
  return lines;
}

}  // namespace slackline::server::coordinator
