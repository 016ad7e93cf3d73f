// A cluster without processes: the coordinator's state machine with servers and workers that are
// plain data, in virtual time. Tests kill, replace and mislead it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/coordinator/coordinator_state.h"

namespace slackline::server::coordinator {

// A job that passes every check.
control::JobSpec SmallJob();
// Two tensors: "w" [8, 4] and "b" [4].
Tensors SmallModel();
control::TensorSpec Tensor(const std::string& name, const std::vector<int64_t>& shape);

class Cluster {
 public:
  explicit Cluster(CoordinatorOptions options);

  // A process: heartbeats while it is alive and connected. Servers apply what they are sent at once
  // unless `applies` is false, and hold the watermarks that tests set.
  struct Peer {
    ConnectionId connection = kNoConnection;
    bool alive = true;
    control::Envelope registration;  // Sent again after a reconnect.
    std::optional<control::Registered> registered;
    std::vector<control::Envelope> inbox;  // Everything that it was sent, oldest first.
    // Servers.
    bool applies = true;
    uint64_t epoch = 0, view_version = 0;
    std::map<std::pair<WorkerId, Incarnation>, Clock> highest;
    Clock min_clock = kNoClock;
    uint32_t chunks_initialised = 0;
    // Workers: finished since the last heartbeat.
    std::vector<control::StepReport> steps;

    // The newest message of a kind; null: none came.
    const control::View* view() const;
    const control::ShardMap* map() const;
    const control::Shutdown* shutdown() const;
    const control::Error* error() const;
    const control::TakeCheckpoint* take_checkpoint() const;
  };

  Peer& AddServer(const std::string& instance, int shards = 1);
  Peer& AddWorker(const std::string& instance, int32_t rank = -1,
                  const control::JobSpec& job = SmallJob());
  // Registers and declares; `expected` servers and workers, up to running.
  void StartAll(int servers, int workers, const control::JobSpec& job = SmallJob());

  // Sends a message (with a request id) and returns the answer, if one came at once.
  std::optional<control::Envelope> Say(Peer& peer, control::Envelope message);
  std::optional<control::Envelope> Declare(Peer& worker, const Tensors& tensors = SmallModel());
  std::optional<control::Envelope> Arrive(Peer& worker, const std::string& barrier);
  std::optional<control::Envelope> Lease(Peer& worker, uint32_t count);
  void Leave(Peer& peer, bool done, const std::string& reason = "");
  // A message from a connection that belongs to nobody.
  std::optional<control::Envelope> SayAsStranger(control::Envelope message);
  void Heartbeat(Peer& peer);
  // SIGKILL: the connection breaks, heartbeats stop.
  void Kill(Peer& peer);
  // The connection breaks and the process registers again on a new one.
  void Reconnect(Peer& peer);

  // Time goes by in ticks of 100 ms, with heartbeats of everyone who lives.
  void Run(TimeNs duration);
  void Tick(TimeNs step);  // One tick, no heartbeats.
  void Carry(Outputs outputs);

  nlohmann::json Status() const { return nlohmann::json::parse(state->StatusJson(now)); }
  // Whether a log line contains the text.
  bool Logged(const std::string& text) const;

  TimeNs now = 1000 * kNsPerSecond;
  std::unique_ptr<CoordinatorState> state;
  std::deque<Peer> servers, workers;
  std::vector<std::string> log;
  std::vector<std::string> metrics;
  std::map<std::string, std::string> files;
  std::optional<Exit> exit;
  // Checkpoints: what the owner's I/O answers, and what it was told.
  bool prepare_fails = false, commit_fails = false;
  std::vector<CheckpointPlan> committed;
  std::vector<std::string> discarded;

 private:
  Peer* FindPeer(ConnectionId connection);
  void Deliver(const Send& send);

  ConnectionId next_connection_ = 1;
  uint64_t next_request_ = 1;
  std::map<uint64_t, control::Envelope> answers_;
};

}  // namespace slackline::server::coordinator
