#include "tests/sim/control_plane.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace slackline::sim {
namespace {

using namespace server::coordinator;  // NOLINT: the outputs' names.

constexpr TimeNs kMinDelayNs = 50'000;
constexpr uint64_t kDelaySpreadNs = 2'000'000;
constexpr TimeNs kTickNs = 20 * kNsPerMs;

}  // namespace

ControlPlane::ControlPlane(transport::SimNetwork& network, const CoordinatorOptions& options,
                           uint64_t seed)
    : network_(network), rng_(seed), state_(options, network.NowNs()) {
  network_.At(network_.NowNs() + kTickNs, [this] { Tick(); });
}

void ControlPlane::Tick() {
  if (exited_) return;
  CarryOut(state_.OnTick(network_.NowNs()));
  network_.At(network_.NowNs() + kTickNs, [this] { Tick(); });
}

TimeNs ControlPlane::Later(TimeNs* last_ns) {
  const TimeNs delay_ns = kMinDelayNs + static_cast<TimeNs>(rng_.Below(kDelaySpreadNs));
  *last_ns = std::max(*last_ns, network_.NowNs() + delay_ns);
  return *last_ns;
}

ConnectionId ControlPlane::Open(Client* client) {
  connections_[next_connection_] = {.client = client};
  return next_connection_++;
}

void ControlPlane::Close(ConnectionId connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  found->second.client = nullptr;
  network_.At(Later(&found->second.last_up_ns), [this, connection] {
    if (connections_.erase(connection) == 0 || exited_) return;
    CarryOut(state_.OnDisconnected(connection, network_.NowNs()));
  });
}

void ControlPlane::CutOne() {
  if (connections_.empty()) return;
  auto victim = connections_.begin();
  std::advance(victim, static_cast<int64_t>(rng_.Below(connections_.size())));
  const ConnectionId connection = victim->first;
  Client* client = std::exchange(victim->second.client, nullptr);
  // What was under way in both directions is lost with it.
  connections_.erase(connection);
  if (!exited_) CarryOut(state_.OnDisconnected(connection, network_.NowNs()));
  if (client != nullptr) client->OnControlLost();
}

void ControlPlane::Send(ConnectionId connection, const control::Envelope& message) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  network_.At(Later(&found->second.last_up_ns), [this, connection, message] {
    if (exited_ || !connections_.contains(connection)) return;
    CarryOut(state_.OnMessage(connection, message, network_.NowNs()));
  });
}

void ControlPlane::Down(ConnectionId connection, const control::Envelope& message) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  network_.At(Later(&found->second.last_down_ns), [this, connection, message] {
    const auto still = connections_.find(connection);
    if (still == connections_.end() || still->second.client == nullptr) return;
    still->second.client->OnControl(message);
  });
}

void ControlPlane::CarryOut(Outputs outputs) {
  for (const Output& output : outputs) {
    if (const auto* send = std::get_if<server::coordinator::Send>(&output)) {
      Down(send->connection, send->envelope);
    } else if (const auto* close = std::get_if<server::coordinator::Close>(&output)) {
      const auto found = connections_.find(close->connection);
      if (found == connections_.end()) continue;
      Client* client = found->second.client;
      connections_.erase(found);
      if (client != nullptr) client->OnControlLost();
    } else if (const auto* log = std::get_if<Log>(&output)) {
      log_.push_back(std::to_string(network_.NowNs() / kNsPerMs) + " ms  " + log->text);
      if (log_.size() > kLogLines) log_.pop_front();
    } else if (const auto* exit = std::get_if<Exit>(&output)) {
      exited_ = true;
      exit_code_ = exit->code;
      exit_reason_ = exit->reason;
    }
  }
}

std::string ControlPlane::LogTail() const {
  std::string text;
  for (const std::string& line : log_) text += "  " + line + "\n";
  return text;
}

}  // namespace slackline::sim
