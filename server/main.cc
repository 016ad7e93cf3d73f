// slackline-server: holds shards of the parameters and applies updates to them.
#include <gflags/gflags.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>

#include "common/flags.h"
#include "server/server_process.h"
#include "transport/address.h"
#include "transport/transport_flags.h"

DEFINE_string(coordinator, "", "host:port of the coordinator");
DEFINE_string(host, "127.0.0.1", "address that shards listen on and workers connect to");
DEFINE_int32(port, 0, "port of the first shard, the others follow; 0 takes free ones");
DEFINE_int32(shards, 1, "shards, each with a thread and a port of its own");
DEFINE_double(connect_timeout_s, 15, "how long to look for the coordinator");

namespace {

using slackline::CheckRange;
using slackline::ExitOnFlagError;
using slackline::FlagStatus;
using slackline::server::ServerOptions;
using slackline::server::ServerProcess;

// Exits with code 2 if a flag is wrong.
ServerOptions OptionsFromFlags() {
  ExitOnFlagError(CheckRange("shards", FLAGS_shards, 1, slackline::server::kMaxShardsPerServer));
  ExitOnFlagError(CheckRange("port", FLAGS_port, 0, FLAGS_port == 0 ? 0 : 65536 - FLAGS_shards));
  ExitOnFlagError(CheckRange("connect_timeout_s", FLAGS_connect_timeout_s, 0.1, 24 * 3600));
  if (FLAGS_host.empty()) {
    ExitOnFlagError(FlagStatus("host", FLAGS_host, "an address to listen on"));
  }
  slackline::transport::TransportChoice transport = slackline::transport::TransportFromFlags();
  // Last, so that a wrong value is named even where a cluster was not.
  if (!slackline::transport::ParseHostPort(FLAGS_coordinator)) {
    ExitOnFlagError(FlagStatus("coordinator", FLAGS_coordinator, "host:port"));
  }
  ServerOptions options;
  options.coordinator = FLAGS_coordinator;
  options.host = FLAGS_host;
  options.port = static_cast<uint16_t>(FLAGS_port);
  options.shards = static_cast<uint32_t>(FLAGS_shards);
  options.transport = std::move(transport.name);
  options.endpoint = std::move(transport.options);
  options.connect_timeout_ns =
      static_cast<slackline::TimeNs>(FLAGS_connect_timeout_s * slackline::kNsPerSecond);
  return options;
}

extern "C" void OnSignal(int) { ServerProcess::RequestStop(); }

// The default action until there is something to say goodbye to.
void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

int Fail(const slackline::Status& status) {
  std::cerr << "slackline-server: " << status.message() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  slackline::ParseFlags(argc, argv,
                        {.name = "slackline-server",
                         .summary = "Holds shards of a job's parameters, applies workers' updates "
                                    "to them and answers with weights.",
                         .examples = "slackline-server --coordinator=127.0.0.1:4700 --shards=2",
                         .groups = {{"Job", {"coordinator", "connect_timeout_s"}},
                                    {"Shards", {"shards", "host", "port"}},
                                    slackline::transport::TransportFlagGroup()}});
  slackline::InitLogging(argv[0]);
  const ServerOptions options = OptionsFromFlags();
  // Writing to a peer that has gone is an error code, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  auto process = ServerProcess::Create(options);
  if (!process) return Fail(process.error());
  HandleSignals();
  for (const std::string& address : (*process)->addresses()) {
    std::cout << "slackline-server shard at " << address << std::endl;
  }
  const slackline::Status status = (*process)->Run();
  return status.ok() ? 0 : Fail(status);
}
