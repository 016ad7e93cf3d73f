#include <glog/logging.h>

#include "common/flags.h"

namespace slackline {

void InitLogging(const char* program) {
  // Standard error only: whoever starts the process (scripts/fleet, a service manager) owns the
  // files. glog's signal handler stays uninstalled, since it would print a stack for SIGTERM.
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(program);
}

}  // namespace slackline
