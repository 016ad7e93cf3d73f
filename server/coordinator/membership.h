// Who belongs to the cluster: servers and workers, their connections and their leases.
//
// A process is known by the random instance string that it made at its start: the same instance on
// a new connection is a reconnect and keeps its identity; another instance takes a rank only after
// the lease of the one before has run out. A lease is renewed by every message of its holder and
// does not depend on a connection.
// Threading: owner thread: the coordinator's.
// Errors: AlreadyExists: the rank or all places are taken; Unavailable: taken by a process that is
// disconnected, so that it is worth asking again when its lease has run out; Aborted: this
// instance's own lease ran out, only a new process can join; InvalidArgument: a value out of range.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"
#include "proto/control.pb.h"

namespace slackline::server::coordinator {

using ConnectionId = uint64_t;
inline constexpr ConnectionId kNoConnection = 0;

enum class Role : uint8_t { kNone, kServer, kWorker };

// What servers and workers have in common. A vacant place keeps its last holder's record.
struct Process {
  std::string instance;  // Empty: never held.
  std::string host;
  int64_t pid = 0;
  ConnectionId connection = kNoConnection;
  TimeNs lease_deadline_ns = kNever;
  bool live = false;  // Holds its place; false: never held, expired or left.
  std::string waiting_for;

  std::string Place() const;  // "host, pid 123"
};

struct ServerRecord : Process {
  uint32_t id = 0;
  uint32_t first_shard = 0;
  std::vector<std::string> addresses;
};

enum class WorkerState : uint8_t {
  kVacant,      // Never held, dead, or left before its time.
  kRegistered,  // Has not declared its model yet.
  kDeclared,    // Waits to become a member of the view.
  kMember,
  kDone,  // Left after its last clock.
};
std::string_view WorkerStateName(WorkerState state);

struct WorkerRecord : Process {
  WorkerId rank = 0;
  Incarnation incarnation = 0;  // Of the present or last holder.
  WorkerState state = WorkerState::kVacant;
  Clock first_clock = 0;          // As a member.
  uint64_t admitted_view = 0;     // Version of the view that it joined with.
  uint64_t removed_view = 0;      // Version of the view that its last life had left; 0: none.
  bool started = false;           // Was sent its view and the shard map.
  Clock clock = kNoClock;         // Its own report.
  Clock highest = kNoClock;       // This life's highest on any chunk, as shards report it.
  Clock highest_ever = kNoClock;  // The same over all lives of the rank.
  double loss_scale = 0;
};

class Membership {
 public:
  struct Options {
    uint32_t expected_servers = 1;
    uint32_t expected_workers = 1;
    TimeNs lease_ns = 5 * kNsPerSecond;
  };
  struct Holder {
    Role role = Role::kNone;
    uint32_t index = 0;  // Server id or worker rank.
  };
  // How a registration was met. `superseded`: the same instance's older connection, to be closed.
  struct Registration {
    uint32_t index = 0;
    bool reconnected = false;
    ConnectionId superseded = kNoConnection;
  };

  explicit Membership(const Options& options) : options_(options) {}

  // `placed`: the shard map exists, so that servers can no longer be replaced.
  Result<Registration> RegisterServer(ConnectionId connection, const control::RegisterServer& who,
                                      bool placed, TimeNs now);
  // The rank that the worker would get (of its own instance, wanted, or free); nothing is recorded,
  // so that a worker with another job takes no rank. `running`: ranks beyond the expected may join.
  Result<WorkerId> ChooseRank(ConnectionId connection, const control::RegisterWorker& who,
                              bool running, TimeNs now) const;
  Registration RegisterWorker(ConnectionId connection, const control::RegisterWorker& who,
                              WorkerId rank, TimeNs now);

  Holder Find(ConnectionId connection) const;
  // Renews the lease of the connection's holder.
  void Touch(ConnectionId connection, TimeNs now);
  void Disconnect(ConnectionId connection);
  // All leases grow by this.
  void ExtendLeases(TimeNs by);
  std::vector<Holder> Expired(TimeNs now) const;

  // The holder is gone. Its instance may not come back if `retire`.
  void VacateServer(uint32_t id);
  void VacateWorker(WorkerId rank, WorkerState state, bool retire);

  bool AllServersHere() const;
  uint32_t shard_count() const;
  const std::vector<ServerRecord>& servers() const { return servers_; }
  ServerRecord& server(uint32_t id) { return servers_[id]; }
  // Ordered by rank; ranks that were never held are absent.
  const std::map<WorkerId, WorkerRecord>& workers() const { return workers_; }
  std::map<WorkerId, WorkerRecord>& workers() { return workers_; }
  WorkerRecord& worker(WorkerId rank) { return workers_.at(rank); }
  const WorkerRecord& worker(WorkerId rank) const { return workers_.at(rank); }
  std::set<WorkerId> Members() const;  // Ranks in state kMember.
  size_t CountWorkers(WorkerState state) const;
  size_t connections() const { return connections_.size(); }

 private:
  // A connection speaks for one process.
  Status CheckConnection(ConnectionId connection, Role role, const std::string& instance) const;
  Result<WorkerId> CheckWantedRank(int32_t wanted, bool running, TimeNs now) const;
  Result<WorkerId> FreeRank(bool running, TimeNs now) const;
  // Takes over the connection; returns the instance's older one.
  ConnectionId Bind(ConnectionId connection, Holder holder, Process* process, TimeNs now);
  void Retire(const std::string& instance);

  const Options options_;
  std::vector<ServerRecord> servers_;
  std::map<WorkerId, WorkerRecord> workers_;
  std::map<ConnectionId, Holder> connections_;
  std::deque<std::string> retired_;  // Instances whose lease ran out; the oldest are forgotten.
};

// Checks shared by both kinds of registration: protocol version, lengths.
Status CheckIntroduction(uint32_t protocol_version, const std::string& host,
                         const std::string& instance);

}  // namespace slackline::server::coordinator
