// The subcommands of slackline-bench and the flags that they share.
//
// A subcommand is one source file with one function below and one line in the table of main.cc. It
// parses its own argv with ParseFlags (argv[0] is "slackline-bench SUBCOMMAND"), prints a table and
// returns the program's exit code.
#pragma once

#include <gflags/gflags_declare.h>

DECLARE_string(json);        // Where the results go as JSON as well; empty for nowhere.
DECLARE_int32(repetitions);  // Measured repetitions; figures are their medians.
DECLARE_string(transport);   // What carries the data: transport/transport_flags.h.
DECLARE_string(plot);        // Where the results go as SVG as well; empty for nowhere.

namespace slackline::bench {

// Each fused optimizer against a triad and a copy that move the same number of bytes.
int RunApply(int argc, char** argv);
// Each codec's passes against a memcpy of its FP32 input.
int RunCodec(int argc, char** argv);
// Push-pulls between shards and workers, against iperf3 over the same loopback.
int RunPushPull(int argc, char** argv);
// One channel's bandwidth, message rate and latency.
int RunTransport(int argc, char** argv);
// What one RDMA queue pair carries without the protocol.
int RunVerbs(int argc, char** argv);

}  // namespace slackline::bench
