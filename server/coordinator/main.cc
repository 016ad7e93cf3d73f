// slackline-coordinator: membership, shard map, barriers, data leases, checkpoints, status page.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <csignal>
#include <cstdio>
#include <random>
#include <string>

#include "common/flags.h"
#include "server/coordinator/coordinator_process.h"
#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"
#include "transport/address.h"

DEFINE_int32(port, 0, "port to listen on; 0 takes a free one");
DEFINE_string(host, "127.0.0.1", "address to listen on");
DEFINE_string(port_file, "", "file that gets the port that was taken");
DEFINE_int32(workers, 1, "workers that the job starts with");
DEFINE_int32(servers, 1, "servers that hold the parameters");
DEFINE_int32(lease_ms, 5000, "a process that was silent for so long is taken for dead");
DEFINE_double(start_timeout_s, 60, "how long to wait for servers, workers and shards");
DEFINE_double(replacement_timeout_s, 30, "how long a job without any worker waits for one");
DEFINE_string(run_dir, "", "directory for status.json, metrics.jsonl and summary.json");
DEFINE_string(run_id, "", "name of the run; empty: a random one");
DEFINE_string(checkpoint, "", "directory for checkpoints; empty: none are taken");
DEFINE_double(checkpoint_timeout_s, 120, "how long shards may take to write a checkpoint");
DEFINE_string(resume, "", "'latest' (in --checkpoint) or the directory of one checkpoint");
DEFINE_string(status, "", "host:port of a running coordinator: print its status page and exit");

namespace {

using slackline::CheckRange;
using slackline::ExitOnFlagError;
using slackline::kNsPerMs;
using slackline::kNsPerSecond;
using slackline::TimeNs;
namespace coordinator = slackline::server::coordinator;

constexpr TimeNs kStatusTimeout = 3 * kNsPerSecond;

TimeNs FromSeconds(double seconds) {
  return static_cast<TimeNs>(seconds * static_cast<double>(kNsPerSecond));
}

std::string RandomRunId() {
  std::random_device device;
  char text[20];
  std::snprintf(text, sizeof text, "%08x%08x", device(), device());
  return text;
}

// Exits with code 2 if a flag is out of range.
coordinator::ProcessOptions OptionsFromFlags() {
  constexpr double kMaxSeconds = 7 * 24 * 3600;
  ExitOnFlagError(CheckRange("port", FLAGS_port, 0, 65535));
  ExitOnFlagError(CheckRange("workers", FLAGS_workers, 1, coordinator::kMaxWorkers));
  ExitOnFlagError(CheckRange("servers", FLAGS_servers, 1, coordinator::kMaxServers));
  ExitOnFlagError(CheckRange("lease_ms", FLAGS_lease_ms, 200, 3600'000));
  ExitOnFlagError(CheckRange("start_timeout_s", FLAGS_start_timeout_s, 0.1, kMaxSeconds));
  ExitOnFlagError(CheckRange("replacement_timeout_s", FLAGS_replacement_timeout_s, 0, kMaxSeconds));
  ExitOnFlagError(CheckRange("checkpoint_timeout_s", FLAGS_checkpoint_timeout_s, 1, kMaxSeconds));
  if (FLAGS_host.empty()) {
    ExitOnFlagError(slackline::FlagStatus("host", FLAGS_host, "an address to listen on"));
  }
  if (FLAGS_resume == "latest" && FLAGS_checkpoint.empty()) {
    ExitOnFlagError(slackline::FlagStatus("resume", FLAGS_resume,
                                          "a checkpoint's directory, or 'latest' together with "
                                          "--checkpoint"));
  }
  coordinator::ProcessOptions options;
  options.address = coordinator::Text(FLAGS_host, ':', FLAGS_port);
  options.port_file = FLAGS_port_file;
  options.run_directory = FLAGS_run_dir;
  options.resume = FLAGS_resume;
  options.job.run_id = FLAGS_run_id.empty() ? RandomRunId() : FLAGS_run_id;
  options.job.expected_servers = static_cast<uint32_t>(FLAGS_servers);
  options.job.expected_workers = static_cast<uint32_t>(FLAGS_workers);
  options.job.lease_ns = FLAGS_lease_ms * kNsPerMs;
  options.job.start_timeout_ns = FromSeconds(FLAGS_start_timeout_s);
  options.job.replacement_timeout_ns = FromSeconds(FLAGS_replacement_timeout_s);
  options.job.checkpoint_directory = FLAGS_checkpoint;
  options.job.checkpoint_timeout_ns = FromSeconds(FLAGS_checkpoint_timeout_s);
  return options;
}

int PrintStatus() {
  if (!slackline::transport::ParseHostPort(FLAGS_status)) {
    ExitOnFlagError(slackline::FlagStatus("status", FLAGS_status, "host:port"));
  }
  const auto page = coordinator::FetchStatus(FLAGS_status, kStatusTimeout);
  if (!page) {
    std::fprintf(stderr, "slackline-coordinator: %s\n", page.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", page->c_str());
  return 0;
}

extern "C" void OnSignal(int) { coordinator::CoordinatorProcess::RequestStop(); }

void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  // Writing to a peer that has gone is an error code, not a signal.
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  slackline::ParseFlags(
      argc, argv,
      {.name = "slackline-coordinator",
       .summary = "Brings servers and workers together and leads them through one training job.",
       .examples = "  slackline-coordinator --port=4700 --servers=2 --workers=2 --run_dir=runs/x\n"
                   "  slackline-coordinator --status=127.0.0.1:4700\n",
       .groups = {{"Listening", {"host", "port", "port_file"}},
                  {"The job", {"servers", "workers", "run_dir", "run_id"}},
                  {"Checkpoints", {"checkpoint", "resume", "checkpoint_timeout_s"}},
                  {"Patience", {"lease_ms", "start_timeout_s", "replacement_timeout_s"}},
                  {"Looking", {"status"}}}});
  slackline::InitLogging(argv[0]);
  if (!FLAGS_status.empty()) return PrintStatus();
  coordinator::ProcessOptions options = OptionsFromFlags();
  HandleSignals();
  auto process = coordinator::CoordinatorProcess::Create(std::move(options));
  if (!process) {
    std::fprintf(stderr, "slackline-coordinator: %s\n", process.error().message().c_str());
    return 1;
  }
  // Scripts wait for this line (or for --port_file).
  std::printf("slackline-coordinator listening on %s\n", (*process)->address().c_str());
  std::fflush(stdout);
  return (*process)->Run();
}
