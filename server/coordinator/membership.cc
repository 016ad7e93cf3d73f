#include "server/coordinator/membership.h"

#include <algorithm>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"
#include "transport/control/control_channel.h"

namespace slackline::server::coordinator {
namespace {

// "worker rank 1 is held by host, pid 7, whose lease runs for another 3.2 s".
Status Taken(std::string_view what, const Process& holder, TimeNs now) {
  const std::string text =
      Text(what, " is held by ", holder.Place(), ", whose lease runs for another ",
           Seconds(std::max<TimeNs>(holder.lease_deadline_ns - now, 0)));
  if (holder.connection != kNoConnection) return AlreadyExists(text);
  return Unavailable(text + " (it is disconnected now): try again after that");
}

}  // namespace

std::string Process::Place() const { return Text(Printable(host), ", pid ", pid); }

std::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kVacant:
      return "gone";
    case WorkerState::kRegistered:
      return "registered";
    case WorkerState::kDeclared:
      return "waiting";
    case WorkerState::kMember:
      return "training";
    case WorkerState::kDone:
      return "done";
  }
  return "?";
}

Status CheckIntroduction(uint32_t protocol_version, const std::string& host,
                         const std::string& instance) {
  if (protocol_version != transport::kControlProtocolVersion) {
    return Unimplemented(Text("this coordinator speaks control protocol version ",
                              transport::kControlProtocolVersion, ", the peer version ",
                              protocol_version, ": use programs of one build"));
  }
  if (host.size() > kMaxNameBytes) {
    return InvalidArgument(Text("the host's name has more than ", kMaxNameBytes, " bytes"));
  }
  if (instance.empty() || instance.size() > kMaxNameBytes) {
    return InvalidArgument(
        Text("the instance string has 1..", kMaxNameBytes, " bytes, this one ", instance.size()));
  }
  return OkStatus();
}

Status Membership::CheckConnection(ConnectionId connection, Role role,
                                   const std::string& instance) const {
  const Holder holder = Find(connection);
  const Process* process = nullptr;
  if (holder.role == Role::kServer) process = &servers_[holder.index];
  if (holder.role == Role::kWorker) process = &workers_.at(holder.index);
  if (process == nullptr) return OkStatus();
  if (holder.role == role && process->instance == instance) return OkStatus();
  return InvalidArgument("this connection has registered another process already");
}

Membership::Holder Membership::Find(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? Holder{} : found->second;
}

ConnectionId Membership::Bind(ConnectionId connection, Holder holder, Process* process,
                              TimeNs now) {
  const ConnectionId before = process->connection;
  if (before != kNoConnection) connections_.erase(before);
  process->connection = connection;
  process->lease_deadline_ns = now + options_.lease_ns;
  process->live = true;
  connections_[connection] = holder;
  return before == connection ? kNoConnection : before;
}

Result<Membership::Registration> Membership::RegisterServer(ConnectionId connection,
                                                            const control::RegisterServer& who,
                                                            bool placed, TimeNs now) {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckConnection(connection, Role::kServer, who.instance()));
  const auto count = static_cast<size_t>(who.shard_addresses_size());
  if (count == 0 || count > kMaxShardsPerServer) {
    return Err(InvalidArgument(
        Text("a server with ", count, " shards: expected 1..", kMaxShardsPerServer)));
  }
  for (const std::string& address : who.shard_addresses()) {
    if (address.size() <= kMaxAddressBytes && address.find("://") != std::string::npos) continue;
    return Err(InvalidArgument(
        Text("the shard address '", Printable(address), "': expected one like tcp://host:port")));
  }
  for (ServerRecord& server : servers_) {
    if (!server.live || server.instance != who.instance()) continue;
    const ConnectionId old = Bind(connection, {Role::kServer, server.id}, &server, now);
    return Registration{server.id, true, old};
  }
  if (placed) {
    return Err(FailedPrecondition(Text("the job runs on its ", Plural(servers_.size(), "server"),
                                       " already; a server cannot join later")));
  }
  ServerRecord* place = nullptr;
  for (ServerRecord& server : servers_) {
    if (!server.live && server.addresses.size() == count) place = &server;
  }
  if (place == nullptr) {
    if (servers_.size() >= options_.expected_servers) {
      return Err(AlreadyExists(Text("the job expects ", Plural(options_.expected_servers, "server"),
                                    " (--servers) and no place for ", Plural(count, "shard"),
                                    " is free")));
    }
    const uint32_t first_shard = shard_count();
    place = &servers_.emplace_back();
    place->id = static_cast<uint32_t>(servers_.size() - 1);
    place->first_shard = first_shard;
  }
  place->instance = who.instance();
  place->host = who.host();
  place->pid = who.pid();
  place->addresses.assign(who.shard_addresses().begin(), who.shard_addresses().end());
  Bind(connection, {Role::kServer, place->id}, place, now);
  return Registration{place->id, false, kNoConnection};
}

Result<WorkerId> Membership::ChooseRank(ConnectionId connection, const control::RegisterWorker& who,
                                        bool running, TimeNs now) const {
  SLACKLINE_RETURN_ERR_IF_ERROR(CheckConnection(connection, Role::kWorker, who.instance()));
  for (const auto& [rank, worker] : workers_) {
    if (worker.live && worker.instance == who.instance()) return rank;
  }
  if (std::find(retired_.begin(), retired_.end(), who.instance()) != retired_.end()) {
    return Err(Aborted(Text("this worker has left, or its lease of ", Seconds(options_.lease_ns),
                            " ran out: it was removed from the view; start it anew")));
  }
  return who.wanted_rank() < 0 ? FreeRank(running, now)
                               : CheckWantedRank(who.wanted_rank(), running, now);
}

Result<WorkerId> Membership::CheckWantedRank(int32_t wanted, bool running, TimeNs now) const {
  const uint32_t limit = running ? kMaxWorkers : options_.expected_workers;
  const auto rank = static_cast<WorkerId>(wanted);
  if (rank >= limit) {
    return Err(InvalidArgument(Text("--rank=", wanted, ": expected 0..", limit - 1,
                                    running ? "" : " (the coordinator's --workers - 1)")));
  }
  const auto found = workers_.find(rank);
  if (found == workers_.end()) return rank;
  if (found->second.state == WorkerState::kDone) {
    return Err(AlreadyExists(Text("worker ", rank, " has finished its training")));
  }
  if (found->second.live) return Err(Taken(Text("worker rank ", rank), found->second, now));
  if (found->second.incarnation >= kMaxIncarnation) {
    return Err(FailedPrecondition(Text("worker ", rank, " was replaced too often")));
  }
  return rank;
}

Result<WorkerId> Membership::FreeRank(bool running, TimeNs now) const {
  for (WorkerId rank = 0; rank < options_.expected_workers; ++rank) {
    if (auto free = CheckWantedRank(static_cast<int32_t>(rank), running, now)) return free;
  }
  // A place whose holder may be dead is worth waiting for.
  for (const auto& [rank, worker] : workers_) {
    if (worker.live && worker.connection == kNoConnection) {
      return Err(Taken(Text("worker rank ", rank), worker, now));
    }
  }
  if (!running) {
    return Err(AlreadyExists(Text("the job has its ", Plural(options_.expected_workers, "worker"),
                                  " (--workers); more may join once it runs")));
  }
  for (WorkerId rank = options_.expected_workers; rank < kMaxWorkers; ++rank) {
    if (auto free = CheckWantedRank(static_cast<int32_t>(rank), running, now)) return free;
  }
  return Err(ResourceExhausted(Text("all ", kMaxWorkers, " ranks are taken")));
}

Membership::Registration Membership::RegisterWorker(ConnectionId connection,
                                                    const control::RegisterWorker& who,
                                                    WorkerId rank, TimeNs now) {
  WorkerRecord& worker = workers_[rank];
  const bool reconnected = worker.live && worker.instance == who.instance();
  if (!reconnected) {
    worker.rank = rank;
    ++worker.incarnation;
    worker.instance = who.instance();
    worker.host = who.host();
    worker.pid = who.pid();
    worker.state = WorkerState::kRegistered;
    worker.started = false;
    worker.admitted_view = 0;
    worker.clock = kNoClock;
    worker.highest = kNoClock;
    worker.waiting_for.clear();
  }
  const ConnectionId old = Bind(connection, {Role::kWorker, rank}, &worker, now);
  return {rank, reconnected, old};
}

void Membership::Touch(ConnectionId connection, TimeNs now) {
  const Holder holder = Find(connection);
  const TimeNs deadline = now + options_.lease_ns;
  if (holder.role == Role::kServer) servers_[holder.index].lease_deadline_ns = deadline;
  if (holder.role == Role::kWorker) workers_.at(holder.index).lease_deadline_ns = deadline;
}

void Membership::Disconnect(ConnectionId connection) {
  const Holder holder = Find(connection);
  connections_.erase(connection);
  if (holder.role == Role::kServer) servers_[holder.index].connection = kNoConnection;
  if (holder.role == Role::kWorker) workers_.at(holder.index).connection = kNoConnection;
}

void Membership::ExtendLeases(TimeNs by) {
  for (ServerRecord& server : servers_) {
    if (server.live) server.lease_deadline_ns += by;
  }
  for (auto& [rank, worker] : workers_) {
    if (worker.live) worker.lease_deadline_ns += by;
  }
}

std::vector<Membership::Holder> Membership::Expired(TimeNs now) const {
  std::vector<Holder> expired;
  for (const ServerRecord& server : servers_) {
    if (server.live && now >= server.lease_deadline_ns)
      expired.push_back({Role::kServer, server.id});
  }
  for (const auto& [rank, worker] : workers_) {
    if (worker.live && now >= worker.lease_deadline_ns) expired.push_back({Role::kWorker, rank});
  }
  return expired;
}

void Membership::VacateServer(uint32_t id) {
  ServerRecord& server = servers_[id];
  if (server.connection != kNoConnection) connections_.erase(server.connection);
  server.connection = kNoConnection;
  server.live = false;
}

void Membership::VacateWorker(WorkerId rank, WorkerState state, bool retire) {
  WorkerRecord& worker = workers_.at(rank);
  if (worker.connection != kNoConnection) connections_.erase(worker.connection);
  worker.connection = kNoConnection;
  worker.live = false;
  worker.state = state;
  worker.started = false;
  if (retire) Retire(worker.instance);
}

void Membership::Retire(const std::string& instance) {
  if (retired_.size() == kMaxRetiredInstances) retired_.pop_front();
  retired_.push_back(instance);
}

bool Membership::AllServersHere() const {
  return servers_.size() == options_.expected_servers &&
         std::all_of(servers_.begin(), servers_.end(), [](const auto& s) { return s.live; });
}

uint32_t Membership::shard_count() const {
  size_t count = 0;
  for (const ServerRecord& server : servers_) count += server.addresses.size();
  return static_cast<uint32_t>(count);
}

std::set<WorkerId> Membership::Members() const {
  std::set<WorkerId> members;
  for (const auto& [rank, worker] : workers_) {
    if (worker.state == WorkerState::kMember) members.insert(rank);
  }
  return members;
}

size_t Membership::CountWorkers(WorkerState state) const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(),
                    [&](const auto& entry) { return entry.second.state == state; }));
}

}  // namespace slackline::server::coordinator
