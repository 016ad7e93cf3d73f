// A server process under the simulator: real shards, each with its endpoint, and what a server's
// main program does for them (register, pass on maps and views, report).
// Threading: the network's thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "server/shard.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/sim_process.h"
#include "transport/sim/sim_endpoint.h"

namespace slackline::sim {

class SimServer final : public SimProcess, private ControlPlane::Client {
 public:
  SimServer(transport::SimNetwork& network, ControlPlane& control, std::string name,
            uint32_t shards, uint32_t expected_workers, uint64_t seed);
  ~SimServer() override;

  const server::Shard& shard(size_t index) const { return *units_[index].shard; }
  size_t shards() const { return units_.size(); }
  // What a shard refused to install; empty if nothing.
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  struct Unit {
    std::unique_ptr<transport::SimEndpoint> endpoint;
    std::unique_ptr<server::Shard> shard;
    std::string address;
  };

  void Turn() override;
  void OnControl(const control::Envelope& message) override;
  void OnControlLost() override;
  void Register();
  void Handle(const control::Envelope& message);
  void MakeShards(uint32_t first_shard);
  void Heartbeat();
  void LeaveCluster();

  ControlPlane& control_;
  const uint32_t expected_workers_;
  ConnectionId connection_ = 0;
  std::deque<control::Envelope> inbox_;
  std::vector<Unit> units_;
  TimeNs heartbeat_ns_ = kNever;  // Between two; known once registered.
  TimeNs next_heartbeat_ns_ = kNever;
  uint64_t sequence_ = 0;
  uint64_t reported_ = 0;  // A sum over what the coordinator waits for.
  bool lost_ = false;
  bool left_ = false;
  std::vector<std::string> errors_;
};

}  // namespace slackline::sim
