// The yardstick of the network benchmarks: what iperf3 carries over the loopback in the same run.
#pragma once

#include "common/status.h"

namespace slackline::bench {

// Runs an iperf3 server and `iperf3 --bidir` against it for `seconds`; the mean of both directions
// in GB/s (10^9 bytes). NotFound: iperf3 is not installed (says so, and how to get it).
Result<double> MeasureIperfBidirectional(int seconds);

}  // namespace slackline::bench
