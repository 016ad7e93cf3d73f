// A process under the simulator: it has turns. A turn comes a little after something arrived, or
// when the process asked to be woken; a stalled process (a page fault, a debugger, a bad machine)
// has none until its stall ends.
// Threading: the network's thread.
#pragma once

#include <memory>
#include <string>

#include "common/random.h"
#include "transport/sim/sim_network.h"

namespace slackline::sim {

class SimProcess {
 public:
  SimProcess(transport::SimNetwork& network, std::string name, uint64_t seed);
  virtual ~SimProcess() = default;
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  const std::string& name() const { return name_; }
  // No turn before this time.
  void StallUntil(TimeNs until_ns) { stalled_until_ns_ = until_ns; }

 protected:
  // What the process does with its share of the machine. Must not destroy it.
  virtual void Turn() = 0;

  void WakeAt(TimeNs when_ns);
  void WakeSoon();  // Something arrived; the scheduler takes its time.
  TimeNs now_ns() const { return network_.NowNs(); }

  transport::SimNetwork& network_;
  Rng rng_;

 private:
  void Run(TimeNs when_ns);

  const std::string name_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  TimeNs next_turn_ns_ = kNever;
  TimeNs stalled_until_ns_ = 0;
};

}  // namespace slackline::sim
