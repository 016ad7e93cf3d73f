#include "server/coordinator/run_files.h"

#include <fcntl.h>
#include <glog/logging.h>

#include <cerrno>
#include <cstdio>
#include <span>

namespace slackline::server::coordinator {
namespace {

constexpr TimeNs kFlushInterval = kNsPerSecond;
constexpr size_t kMaxPendingBytes = 1 << 20;

ConstBytes AsBytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Readers see the old content or the new one; a crash may lose both.
Status ReplaceQuickly(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(Fd fd, OpenForWriting(temporary));
  SLACKLINE_RETURN_IF_ERROR(WriteAll(fd, AsBytes(content), temporary));
  SLACKLINE_RETURN_IF_ERROR(fd.Close(temporary));
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return OkStatus();
  return ErrnoStatus(errno, "rename " + temporary + " to " + path);
}

}  // namespace

Result<RunFiles> RunFiles::Open(const std::string& directory, bool append) {
  RunFiles files(directory);
  if (directory.empty()) return files;
  SLACKLINE_RETURN_ERR_IF_ERROR(CreateDirectories(directory));
  const std::string path = directory + "/metrics.jsonl";
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
  files.metrics_ = Fd(open(path.c_str(), flags, 0644));
  if (!files.metrics_.valid()) return Err(ErrnoStatus(errno, "open " + path));
  return files;
}

void RunFiles::AppendMetrics(const std::string& line, TimeNs now) {
  if (directory_.empty()) return;
  if (pending_.empty()) oldest_pending_ns_ = now;
  pending_ += line;
  pending_ += '\n';
  if (pending_.size() >= kMaxPendingBytes) Flush();
}

void RunFiles::Write(const std::string& name, const std::string& content) {
  if (directory_.empty()) return;
  const std::string path = directory_ + "/" + name;
  Report(name == "status.json" ? ReplaceQuickly(path, content)
                               : WriteFileAtomically(path, content));
}

void RunFiles::FlushDue(TimeNs now) {
  if (!pending_.empty() && now - oldest_pending_ns_ >= kFlushInterval) Flush();
}

void RunFiles::Flush() {
  if (pending_.empty()) return;
  Report(WriteAll(metrics_, AsBytes(pending_), directory_ + "/metrics.jsonl"));
  pending_.clear();
}

void RunFiles::Report(const Status& status) {
  if (status.ok() || reported_) return;
  reported_ = true;
  LOG(ERROR) << "the run directory cannot be written (training goes on, this is said once): "
             << status.message();
}

}  // namespace slackline::server::coordinator
