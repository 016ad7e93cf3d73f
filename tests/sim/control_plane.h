// The control plane under the simulator: the real CoordinatorState, and connections to it with
// delays and cuts in virtual time. Messages of a connection keep their order; a cut loses a row of
// the last ones in each direction.
// Threading: the network's thread.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "common/random.h"
#include "proto/control.pb.h"
#include "server/coordinator/coordinator_state.h"
#include "transport/sim/sim_network.h"

namespace slackline::sim {

using server::coordinator::ConnectionId;

class ControlPlane {
 public:
  // A process's end. Called outside of the process's turns; it should note and wake up.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void OnControl(const control::Envelope& message) = 0;
    virtual void OnControlLost() = 0;
  };

  ControlPlane(transport::SimNetwork& network,
               const server::coordinator::CoordinatorOptions& options, uint64_t seed);

  ConnectionId Open(Client* client);
  // The process dropped the connection, or died.
  void Close(ConnectionId connection);
  void Send(ConnectionId connection, const control::Envelope& message);
  // Breaks one connection, chosen by chance.
  void CutOne();

  bool exited() const { return exited_; }
  int exit_code() const { return exit_code_; }
  const std::string& exit_reason() const { return exit_reason_; }
  const server::coordinator::CoordinatorState& state() const { return state_; }
  // The coordinator's last lines, for the message of a failed test.
  std::string LogTail() const;

 private:
  struct Connection {
    Client* client = nullptr;  // Null: the process dropped it.
    TimeNs last_up_ns = 0;
    TimeNs last_down_ns = 0;
  };
  static constexpr size_t kLogLines = 60;

  void Tick();
  void CarryOut(server::coordinator::Outputs outputs);
  void Down(ConnectionId connection, const control::Envelope& message);
  TimeNs Later(TimeNs* last_ns);

  transport::SimNetwork& network_;
  Rng rng_;
  server::coordinator::CoordinatorState state_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_connection_ = 1;
  std::deque<std::string> log_;
  bool exited_ = false;
  int exit_code_ = -1;
  std::string exit_reason_;
};

}  // namespace slackline::sim
