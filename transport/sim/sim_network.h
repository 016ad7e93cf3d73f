// A network that exists only in memory and in virtual time: the same seed gives the same events in
// the same order, with the delays, cuts and refusals that it was asked to make.
//
// It keeps one queue of events. Step() moves the time to the next one and carries it out; what has
// arrived at an endpoint then waits for that endpoint's Poll(), inside which all callbacks run, as
// with any transport. A message keeps its place in its channel (TCP's promise); between channels
// anything may overtake anything.
//
// It is also a witness. It remembers a hash of every payload and looks again when the bytes arrive,
// when the reply comes and when OnReplySent is due: memory that its owner changed too early is a
// line in violations(). A payload lands in two pieces with time between them, and a landing that is
// broken off by a cut is left with bytes of 0xFF (NaN to any float format), so that whoever reads
// memory that was not handed over sees it.
//
// Threading: one thread for the network, its endpoints and their handlers.
// Ownership: the network must outlive its endpoints.
// Allocation: allocates freely; it is for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/random.h"
#include "common/time_source.h"
#include "common/types.h"

namespace slackline::transport {

class SimEndpoint;
class SimChannel;

// What goes wrong, and how often. Chances are probabilities in [0, 1]; delays are drawn uniformly.
struct SimFaults {
  TimeNs delay_min_ns = 20'000;  // Of a message from its sending to its arrival; > 0.
  TimeNs delay_max_ns = 200'000;
  TimeNs landing_max_ns = 50'000;     // Between the first and the last byte of a payload.
  TimeNs notice_max_ns = 20'000'000;  // Until each side learns that its connection was cut.
  double cut_chance = 0;              // Of each message: its connection breaks meanwhile.
  double refuse_chance = 0;           // Of each connect.
  double duplicate_chance = 0;        // Of each request with payload: it arrives twice.
};

class SimNetwork {
 public:
  explicit SimNetwork(uint64_t seed, const SimFaults& faults = {});
  ~SimNetwork();  // CHECKs that no endpoint is left.
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // A process's end of the network. Destroying it is the death of the process: its channels close
  // without a callback, its addresses are free, and its peers hear of it after a delay.
  std::unique_ptr<SimEndpoint> CreateEndpoint(std::string name);

  const TimeSource& time() const { return time_; }
  TimeNs NowNs() const { return time_.now_ns; }
  // From now on; what is under way keeps its fate.
  void set_faults(const SimFaults& faults) { faults_ = faults; }
  const SimFaults& faults() const { return faults_; }

  // Runs `callback` at this time (now, if it is past), outside of any Poll() of this call's making.
  void At(TimeNs when_ns, std::function<void()> callback);
  // Carries out the next event. False: there is none.
  bool Step();
  // Carries out every event up to `until_ns`, and ends at that time.
  void RunUntil(TimeNs until_ns);
  // Time of the next event; kNever if there is none.
  TimeNs NextEventNs() const;

  // Breaks every connection between endpoints of these names now; both sides hear of it later.
  void Cut(std::string_view name, std::string_view other);
  // From now on nothing passes between the two, and nothing is lost, until Heal: what was sent
  // arrives after it. Connects time out.
  void Partition(std::string_view name, std::string_view other);
  void Heal(std::string_view name, std::string_view other);

  // A hash over every event and callback so far: equal for two runs exactly if they were the same.
  uint64_t trace_hash() const { return trace_hash_; }
  uint64_t event_count() const { return event_count_; }
  // Memory that was touched while it was lent to the network; at most kMaxViolations are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  static constexpr size_t kMaxViolations = 16;

 private:
  friend class SimEndpoint;
  friend class SimChannel;

  struct VirtualTime final : TimeSource {
    TimeNs NowNs() const override { return now_ns; }
    TimeNs now_ns = kNsPerSecond;  // Not 0: a zero that stands for "never" would hide.
  };
  using Address = std::string;
  using NamePair = std::pair<std::string, std::string>;

  // ---- For endpoints and channels
  void Schedule(TimeNs when_ns, std::function<void()> event);
  TimeNs Draw(TimeNs low_ns, TimeNs high_ns);
  bool Chance(double chance) { return chance > 0 && rng_.Chance(chance); }
  void Trace(uint64_t what, uint64_t a, uint64_t b);
  void Violation(std::string line);
  bool Partitioned(const std::string& name, const std::string& other) const;
  // Null: the channel is gone.
  SimChannel* FindChannel(uint64_t id) const;
  // The client's end asks for a connection: what happens when its request arrives.
  void ArriveConnect(uint64_t client_id, const Address& address);
  // Breaks the connection that this end belongs to.
  void CutConnection(uint64_t channel_id);

  VirtualTime time_;
  SimFaults faults_;
  Rng rng_;
  uint64_t next_sequence_ = 0;  // Of events: ties are broken by who came first.
  std::map<std::pair<TimeNs, uint64_t>, std::function<void()>> events_;
  size_t endpoint_count_ = 0;
  std::map<Address, SimEndpoint*> listeners_;
  std::map<uint64_t, SimChannel*> channels_;  // By id.
  std::set<NamePair> partitions_;             // Each pair in both orders.
  uint64_t next_channel_ = 1;
  uint64_t next_duplicate_ = 0;
  uint16_t next_port_ = 10'000;
  uint64_t trace_hash_ = 0;
  uint64_t event_count_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace slackline::transport
