// What an endpoint offers beyond transport.h so that several can serve one thread together: to be
// waited for at once, and to use memory that another one allocated. See auto/auto_endpoint.h.
// Threading: owner thread: the endpoint's.
#pragma once

#include "common/status.h"
#include "common/time_source.h"
#include "common/types.h"

namespace slackline::transport {

// An endpoint that can be waited for through a file descriptor.
class Waitable {
 public:
  virtual ~Waitable() = default;
  // Before a wait: from now on everything that Poll(0) would handle makes wait_fd() readable.
  // False: there is something to handle already; do not wait. Ends with the next Poll().
  virtual bool ArmWait() = 0;
  // Valid as long as the endpoint.
  virtual int wait_fd() const = 0;
  // When Poll(0) must be called even if the descriptor stays silent; kNever if nothing is due.
  virtual TimeNs NextDeadlineNs() const = 0;
};

// An endpoint whose waiting Poll can look at others' descriptors too.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // From now on a waiting Poll returns when `fd` is readable. `fd` must outlive the endpoint.
  virtual Status Watch(int fd) = 0;
};

// An endpoint that must know memory before it is used (RDMA registers it).
class MemoryUser {
 public:
  virtual ~MemoryUser() = default;
  // `bytes` is page-aligned and stays mapped until Detach(bytes).
  virtual Status Attach(MutableBytes bytes) = 0;
  virtual void Detach(MutableBytes bytes) = 0;
};

}  // namespace slackline::transport
