// The coordinator as a process: the state machine behind a control server, with time, files and
// signals.
// Threading: one thread, the caller's; RequestStop alone may be called from anywhere, a signal
// handler included.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "common/time_source.h"
#include "server/coordinator/coordinator_state.h"
#include "server/coordinator/run_files.h"
#include "transport/control/control_channel.h"

namespace slackline::server::coordinator {

struct ProcessOptions {
  CoordinatorOptions job;
  std::string address = "127.0.0.1:0";  // Where to listen; port 0: a free one.
  std::string port_file;                // Gets the port that was taken; empty: none.
  std::string run_directory;            // Empty: no files.
  // "latest" (in job.checkpoint_directory) or a checkpoint's directory; empty: a fresh start.
  std::string resume;
};

class CoordinatorProcess {
 public:
  // Reads the checkpoint to resume from, opens files, listens. AlreadyExists: the port is taken, or
  // the checkpoint directory holds another run's checkpoints. NotFound, DataLoss: nothing usable to
  // resume from.
  static Result<std::unique_ptr<CoordinatorProcess>> Create(ProcessOptions options);

  const std::string& address() const { return address_; }
  // Serves until the job has ended. The exit code; the reason has been logged.
  int Run();

  // Ends the job orderly, as SIGTERM does; a second call ends the process at the next tick.
  static void RequestStop();

 private:
  explicit CoordinatorProcess(ProcessOptions options) : options_(std::move(options)) {}

  Status PrepareCheckpointDirectory();
  Status Listen();
  void OnTick();
  // Carries outputs out; what they bring about is carried out after them.
  void Carry(Outputs outputs);
  void Do(const Send& send);
  void Do(const Close& close);
  void Do(const Log& line);
  void Do(const AppendMetrics& line);
  void Do(const WriteRunFile& file);
  void Do(const PrepareCheckpoint& prepare);
  void Do(const CommitCheckpoint& commit);
  void Do(const DiscardCheckpoint& discard);
  void Do(const Exit& exit);

  ProcessOptions options_;
  SteadyTimeSource time_;
  std::string address_;
  std::unique_ptr<RunFiles> files_;
  std::unique_ptr<CoordinatorState> state_;
  std::unique_ptr<transport::ControlServer> server_;
  int exit_code_ = 1;
  int stops_seen_ = 0;
};

// Asks the coordinator at "host:port" for its status page.
Result<std::string> FetchStatus(const std::string& address, TimeNs timeout_ns);

}  // namespace slackline::server::coordinator
