#include "common/time_source.h"

#include <ctime>

namespace slackline {

TimeNs SteadyTimeSource::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

}  // namespace slackline
