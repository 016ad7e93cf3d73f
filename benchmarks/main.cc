// slackline-bench: measures parts of Slackline. `slackline-bench SUBCOMMAND --help` says how.
#include <gflags/gflags.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/bench.h"
#include "common/flags.h"

DEFINE_string(json, "", "also write the results to this file, as JSON");
DEFINE_int32(repetitions, 15, "measured repetitions; figures are medians over them");
DEFINE_string(plot, "", "also draw the results to this file, as SVG");

namespace slackline::bench {
namespace {

struct Subcommand {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, char** argv);
};

constexpr Subcommand kSubcommands[] = {
    {"apply", "fused optimizers against a triad of the same bytes", RunApply},
    {"codec", "encode and decode against memcpy", RunCodec},
    {"pushpull", "gradients out, weights back, over the loopback", RunPushPull},
    {"transport", "bandwidth, message rate and latency of channels, against memcpy", RunTransport},
    {"verbs", "one RDMA queue pair without the protocol, to compare with perftest", RunVerbs},
};

void PrintUsage(std::FILE* out) {
  std::fprintf(out, "slackline-bench SUBCOMMAND [--flags]: measures parts of Slackline\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::fprintf(out, "  %-10s %s\n", subcommand.name.data(), subcommand.summary.data());
  }
  std::fprintf(out, "`slackline-bench SUBCOMMAND --help` lists its flags.\n");
}

int Main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(stdout);
    return 0;
  }
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name != name) continue;
    InitLogging("slackline-bench");
    std::string program = "slackline-bench " + std::string(name);
    std::vector<char*> arguments(argv + 1, argv + argc);
    arguments[0] = program.data();
    arguments.push_back(nullptr);
    return subcommand.run(argc - 1, arguments.data());
  }
  if (!name.empty()) {
    std::fprintf(stderr, "slackline-bench: no subcommand '%s'\n", argv[1]);
  }
  PrintUsage(stderr);
  return kExitUsage;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
