// A program with a flag of every kind, for flags_test.
#include <gflags/gflags.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/flags.h"

DEFINE_int32(steps, 300, "Training steps.");
DEFINE_uint32(chunk_bytes, 1048576, "FP32 bytes of a chunk.");
DEFINE_int64(offset, 0, "A signed number.");
DEFINE_uint64(seed, 1, "Seed of everything random.");
DEFINE_double(learning_rate, 0.001, "Peak learning rate.");
DEFINE_bool(deterministic, false, "Bitwise reproducible sums.");
DEFINE_string(transport, "tcp", "How bytes travel.");
DEFINE_string(hidden, "", "Not in the help, so not a flag of this program.");

int main(int argc, char** argv) {
  using namespace slackline;
  const ProgramHelp help = {
      .name = "flags-program",
      .summary = "Prints its flags.",
      .examples = "  flags-program --steps=5",
      .groups = {{"Training", {"steps", "learning_rate", "seed", "offset", "deterministic"}},
                 {"Transport", {"transport", "chunk_bytes"}}}};
  const bool takes_positional = argc > 1 && std::string_view(argv[1]) == "--seed=99";
  std::vector<std::string> positional;
  ParseFlags(argc, argv, help, takes_positional ? &positional : nullptr);
  ExitOnFlagError(CheckRange("steps", FLAGS_steps, 1, 1e6));
  ExitOnFlagError(CheckRange("learning_rate", FLAGS_learning_rate, 0, 10));
  constexpr std::array<std::string_view, 2> kTransports = {"tcp", "sim"};
  ExitOnFlagError(CheckOneOf("transport", FLAGS_transport, kTransports));
  InitLogging(argv[0]);
  std::printf("%d %u %lld %llu %g %d %s", FLAGS_steps, FLAGS_chunk_bytes,
              static_cast<long long>(FLAGS_offset), static_cast<unsigned long long>(FLAGS_seed),
              FLAGS_learning_rate, FLAGS_deterministic, FLAGS_transport.c_str());
  for (const std::string& text : positional) std::printf(" [%s]", text.c_str());
  std::printf("\n");
  return 0;
}
