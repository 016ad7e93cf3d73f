#include "benchmarks/iperf.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace slackline::bench {

namespace {

constexpr int kAttempts = 50;            // Of the client to find its server listening.
constexpr int kGraceSeconds = 10;        // Beyond the measurement, until it counts as stuck.
constexpr useconds_t kPauseUs = 20'000;  // Between them.

// A port that was free a moment ago; iperf3 cannot take one by itself and say which.
Result<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Err(ErrnoStatus(errno, "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(fd);
  if (!ok) return Err(ErrnoStatus(error, "a free port for iperf3"));
  return ntohs(address.sin_port);
}

// Starts iperf3 with its output going to `output` (or nowhere, if negative). The child's pid.
Result<pid_t> Spawn(const std::vector<std::string>& arguments, int output) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return Err(ErrnoStatus(errno, "fork"));
  if (pid == 0) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(output >= 0 ? output : null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);  // What a shell says when there is no such program.
  }
  return pid;
}

// The server has nothing to say, and -1 (one test) does not always end it.
void End(pid_t server) {
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
}

int WaitFor(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Until the end of the file, or until nothing comes for so long that nothing will.
std::string ReadAll(int fd, int timeout_ms) {
  std::string text;
  std::array<char, 1 << 14> buffer;
  for (;;) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, timeout_ms) <= 0) return "";
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

Result<double> ParseReport(const std::string& text) {
  const auto report = nlohmann::json::parse(text, nullptr, false);
  if (!report.is_object() || !report.contains("end")) return Err(Internal("iperf3: no report"));
  const auto& end = report["end"];
  double bits_per_s = 0;
  for (const char* direction : {"sum_received", "sum_received_bidir_reverse"}) {
    if (!end.contains(direction)) return Err(Internal(std::string("iperf3: no ") + direction));
    bits_per_s += end[direction].value("bits_per_second", 0.0);
  }
  return bits_per_s / 2 / 8 / 1e9;
}

}  // namespace

Result<double> MeasureIperfBidirectional(int seconds) {
  SLACKLINE_ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string port_text = std::to_string(port);
  SLACKLINE_ASSIGN_OR_RETURN(const pid_t server,
                             Spawn({"iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port_text}, -1));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      End(server);
      return Err(ErrnoStatus(errno, "pipe"));
    }
    const Result<pid_t> client = Spawn({"iperf3", "-c", "127.0.0.1", "-p", port_text, "--bidir",
                                        "-J", "-t", std::to_string(seconds)},
                                       ends[1]);
    close(ends[1]);
    if (!client) {
      close(ends[0]);
      End(server);
      return Err(client.error());
    }
    const std::string text = ReadAll(ends[0], (seconds + kGraceSeconds) * 1000);
    close(ends[0]);
    if (text.empty()) kill(*client, SIGTERM);
    const int code = WaitFor(*client);
    if (code == 127) {
      End(server);
      return Err(NotFound("iperf3 is not installed (apt-get install iperf3): no ratio"));
    }
    if (code == 0) {
      End(server);
      return ParseReport(text);
    }
    usleep(kPauseUs);  // Its server does not listen yet.
  }
  End(server);
  return Err(Unavailable("iperf3 does not measure: its client found no server"));
}

}  // namespace slackline::bench
