#include "server/coordinator/coordinator_process.h"

#include <glog/logging.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/file.h"
#include "server/coordinator/checkpoint_manifest.h"
#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

constexpr TimeNs kTickInterval = 100 * kNsPerMs;
static_assert(kTickInterval < kOwnStall / 2);

// Signals so far. Lock-free, so that a signal handler may count; relaxed, since it orders nothing.
std::atomic<int> stop_requests{0};
static_assert(std::atomic<int>::is_always_lock_free);

int64_t UnixTimeSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void CoordinatorProcess::RequestStop() { stop_requests.fetch_add(1, std::memory_order_relaxed); }

Result<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Create(ProcessOptions options) {
  std::unique_ptr<CoordinatorProcess> process(new CoordinatorProcess(std::move(options)));
  SLACKLINE_RETURN_ERR_IF_ERROR(process->PrepareCheckpointDirectory());
  SLACKLINE_ASSIGN_OR_RETURN(RunFiles files, RunFiles::Open(process->options_.run_directory,
                                                            !process->options_.resume.empty()));
  process->files_ = std::make_unique<RunFiles>(std::move(files));
  SLACKLINE_RETURN_ERR_IF_ERROR(process->Listen());
  process->state_ =
      std::make_unique<CoordinatorState>(process->options_.job, process->time_.NowNs());
  return process;
}

Status CoordinatorProcess::PrepareCheckpointDirectory() {
  std::string& root = options_.job.checkpoint_directory;
  if (!root.empty()) {
    SLACKLINE_RETURN_IF_ERROR(CreateDirectories(root));
    // Servers write there from a working directory of their own.
    root = std::filesystem::absolute(root).lexically_normal().string();
    SLACKLINE_RETURN_IF_ERROR(RemoveLeftovers(root));
  }
  if (options_.resume.empty()) {
    if (root.empty()) return OkStatus();
    const Result<std::string> other = FindLatestCheckpoint(root);
    if (!other) return OkStatus();
    return AlreadyExists(Text("--checkpoint=", root, " holds the checkpoint ", *other,
                              " of an earlier run: go on from it with --resume=latest, or choose "
                              "another directory"));
  }
  std::string directory = options_.resume;
  if (directory == "latest") {
    if (root.empty()) return InvalidArgument("--resume=latest needs --checkpoint");
    SLACKLINE_ASSIGN_OR_RETURN_STATUS(directory, FindLatestCheckpoint(root));
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(options_.job.restore, LoadRestorePoint(directory));
  LOG(INFO) << "going on from " << options_.job.restore->directory << ", step "
            << options_.job.restore->clock + 1;
  return OkStatus();
}

Status CoordinatorProcess::Listen() {
  transport::ControlServer::Callbacks callbacks;
  callbacks.on_opened = [](ConnectionId, const std::string&) {};
  callbacks.on_message = [this](ConnectionId connection, const control::Envelope& message) {
    Carry(state_->OnMessage(connection, message, time_.NowNs()));
  };
  callbacks.on_closed = [this](ConnectionId connection, const Status&) {
    Carry(state_->OnDisconnected(connection, time_.NowNs()));
  };
  callbacks.on_tick = [this] { OnTick(); };
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      server_, transport::ControlServer::Create(options_.address, kTickInterval, callbacks));
  address_ = server_->address();
  if (options_.port_file.empty()) return OkStatus();
  return WriteFileAtomically(options_.port_file, address_.substr(address_.rfind(':') + 1) + "\n");
}

int CoordinatorProcess::Run() {
  server_->Run();
  files_->Flush();
  return exit_code_;
}

void CoordinatorProcess::OnTick() {
  const int requests = stop_requests.load(std::memory_order_relaxed);
  if (requests > stops_seen_) {
    stops_seen_ = requests;
    if (requests > 1) {
      LOG(ERROR) << "interrupted again: leaving at once";
      server_->Stop();
      return;
    }
    Carry(state_->OnInterrupt("interrupted", time_.NowNs()));
  }
  Carry(state_->OnTick(time_.NowNs()));
  files_->FlushDue(time_.NowNs());
}

void CoordinatorProcess::Carry(Outputs outputs) {
  for (const Output& output : outputs) {
    std::visit([this](const auto& what) { Do(what); }, output);
  }
}

void CoordinatorProcess::Do(const Send& send) { server_->Send(send.connection, send.envelope); }

void CoordinatorProcess::Do(const Close& close) { server_->Close(close.connection); }

void CoordinatorProcess::Do(const Log& line) {
  switch (line.level) {
    case Log::Level::kInfo:
      LOG(INFO) << line.text;
      break;
    case Log::Level::kWarning:
      LOG(WARNING) << line.text;
      break;
    case Log::Level::kError:
      LOG(ERROR) << line.text;
      break;
  }
}

void CoordinatorProcess::Do(const AppendMetrics& line) {
  files_->AppendMetrics(line.line, time_.NowNs());
}

void CoordinatorProcess::Do(const WriteRunFile& file) { files_->Write(file.name, file.content); }

void CoordinatorProcess::Do(const PrepareCheckpoint& prepare) {
  const Status status = CreateDirectories(prepare.directory);
  Carry(state_->OnCheckpointPrepared(prepare.id, status, time_.NowNs()));
}

void CoordinatorProcess::Do(const CommitCheckpoint& commit) {
  const Status status = CommitPlan(commit.plan, *state_, UnixTimeSeconds());
  Carry(state_->OnCheckpointCommitted(commit.plan.id, status, time_.NowNs()));
}

void CoordinatorProcess::Do(const DiscardCheckpoint& discard) {
  std::error_code error;
  std::filesystem::remove_all(discard.directory, error);
  if (error) LOG(WARNING) << "cannot remove " << discard.directory << ": " << error.message();
}

void CoordinatorProcess::Do(const Exit& exit) {
  exit_code_ = exit.code;
  server_->Stop();
}

Result<std::string> FetchStatus(const std::string& address, TimeNs timeout_ns) {
  SLACKLINE_ASSIGN_OR_RETURN(
      const auto client,
      transport::ControlClient::Create({.address = address, .connect_timeout_ns = timeout_ns}, {}));
  control::Envelope request;
  request.mutable_status_request();
  SLACKLINE_ASSIGN_OR_RETURN(const control::Envelope answer, client->Call(request, timeout_ns));
  if (!answer.has_status_page()) {
    return Err(Internal(Text(address, " answered a status request with something else")));
  }
  return answer.status_page().json();
}

}  // namespace slackline::server::coordinator
