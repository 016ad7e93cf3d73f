// Named barriers over the members of the view: everyone who is alive has to arrive, a dead one is
// not waited for.
//
// A name may be used again once its barrier was released. The release of a worker whose connection
// broke before it was delivered is not lost: the worker arrives again on its next connection and is
// released at once.
// Threading: owner thread: the coordinator's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/types.h"

namespace slackline::server::coordinator {

class Barriers {
 public:
  struct Release {
    WorkerId worker = 0;
    uint64_t request_id = 0;
    std::string name;
  };

  // Records an arrival; a second one of the same worker replaces the first (a resend). Releases
  // follow from Collect. InvalidArgument: the name is empty or too long. ResourceExhausted: too
  // many barriers are open.
  Status Arrive(const std::string& name, WorkerId worker, uint64_t connection, uint64_t request_id);

  // Every barrier at which all of `members` have arrived is released to those that arrived.
  std::vector<Release> Collect(const std::set<WorkerId>& members);

  // The worker's life ended: it has arrived nowhere.
  void Forget(WorkerId worker);

  // "barrier 'trained': waiting for worker 1", one a barrier.
  std::vector<std::string> Describe(const std::set<WorkerId>& members) const;

 private:
  struct Arrival {
    uint64_t connection = 0;
    uint64_t request_id = 0;
  };
  struct LastRelease {
    std::string name;
    uint64_t connection = 0;
  };

  std::map<std::string, std::map<WorkerId, Arrival>> open_;
  std::map<WorkerId, LastRelease> last_release_;
  std::vector<Release> resent_;  // Releases owed to workers that arrived again.
};

}  // namespace slackline::server::coordinator
