// The real slackline-coordinator: what it prints, how it ends, and what strangers can do to it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/file.h"
#include "common/random.h"
#include "server/coordinator/coordinator_process.h"
#include "tests/testing/subprocess.h"
#include "tests/testing/temp_directory.h"

namespace slackline::server::coordinator {
namespace {

using slackline::testing::RunProgram;
using slackline::testing::SubprocessResult;
using ::testing::HasSubstr;

constexpr TimeNs kPatience = 20 * kNsPerSecond;  // A bound for a busy machine, not an expectation.

// A coordinator that runs while the object lives.
class LiveCoordinator {
 public:
  explicit LiveCoordinator(std::vector<std::string> flags) {
    flags.insert(flags.begin(), SLACKLINE_COORDINATOR);
    flags.push_back("--port_file=" + directory_.Path("port"));
    flags.push_back("--run_dir=" + directory_.Path("run"));
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string log = directory_.Path("log");
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~LiveCoordinator() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // Its port, once it listens; -1: it did not within the bound.
  int Port() {
    const SteadyTimeSource time;
    const TimeNs deadline = time.NowNs() + kPatience;
    while (time.NowNs() < deadline) {
      if (const auto text = ReadFile(directory_.Path("port"), 16)) return std::stoi(*text);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // Polls for the file.
    }
    return -1;
  }
  std::string Address() { return "127.0.0.1:" + std::to_string(Port()); }
  void Signal(int number) { kill(pid_, number); }
  // The exit code; the test's own timeout bounds it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string LogText() { return ReadFile(directory_.Path("log"), 1 << 20).value_or(""); }
  nlohmann::json StatusFile() {
    return nlohmann::json::parse(ReadFile(directory_.Path("run/status.json"), 1 << 20).value_or(""),
                                 nullptr, false);
  }

 private:
  slackline::testing::TempDirectory directory_;
  pid_t pid_ = -1;
};

Fd ConnectTo(int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// Whether the peer ends the connection within the bound.
bool IsClosedByPeer(const Fd& fd) {
  pollfd entry = {fd.get(), POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(kPatience / kNsPerMs)) != 1) return false;
  char byte = 0;
  return recv(fd.get(), &byte, 1, 0) <= 0;
}

TEST(Process, GivesUpInBoundAndSaysWhatWasMissing) {
  LiveCoordinator coordinator({"--start_timeout_s=0.5", "--servers=2"});
  EXPECT_EQ(coordinator.Wait(), 1);
  EXPECT_THAT(coordinator.LogText(), HasSubstr("slackline-coordinator listening on 127.0.0.1:"));
  EXPECT_THAT(coordinator.LogText(), HasSubstr("2 of 2 servers to register"));
  EXPECT_EQ(coordinator.StatusFile()["phase"], "ended");
  EXPECT_EQ(coordinator.StatusFile()["failed"], true);
}

TEST(Process, RefusesGarbageAndStillAnswers) {
  LiveCoordinator coordinator({"--start_timeout_s=600"});
  const int port = coordinator.Port();
  ASSERT_GT(port, 0);
  Rng rng(7);
  for (int size : {1, 16, 17, 4096, 100000}) {
    std::string garbage;
    for (int i = 0; i < size; ++i) garbage += static_cast<char>(rng.Below(256));
    const Fd fd = ConnectTo(port);
    // The peer may hang up in the middle of it.
    (void)send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (size < 17) continue;  // Not a whole frame header yet.
    EXPECT_TRUE(IsClosedByPeer(fd)) << size << " bytes";
  }
  const auto page = FetchStatus(coordinator.Address(), kPatience);
  ASSERT_TRUE(page.has_value()) << page.error();
  EXPECT_EQ(nlohmann::json::parse(*page)["phase"], "gathering");
}

TEST(Process, StatusFromTheCommandLine) {
  LiveCoordinator coordinator({"--start_timeout_s=600", "--workers=3"});
  const SubprocessResult good =
      RunProgram({SLACKLINE_COORDINATOR, "--status=" + coordinator.Address()});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(nlohmann::json::parse(good.out)["expected"]["workers"], 3);
  coordinator.Signal(SIGKILL);
  const std::string address = coordinator.Address();
  coordinator.Wait();
  const SubprocessResult bad = RunProgram({SLACKLINE_COORDINATOR, "--status=" + address});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr(address));
}

TEST(Process, ASignalEndsItOrderly) {
  for (const int number : {SIGTERM, SIGINT}) {
    LiveCoordinator coordinator({"--start_timeout_s=600"});
    ASSERT_GT(coordinator.Port(), 0);
    coordinator.Signal(number);
    EXPECT_EQ(coordinator.Wait(), 1);
    EXPECT_THAT(coordinator.LogText(), HasSubstr("interrupted"));
  }
}

TEST(Process, APortInUseIsOneLine) {
  LiveCoordinator coordinator({"--start_timeout_s=600"});
  const std::string port = std::to_string(coordinator.Port());
  const SubprocessResult second = RunProgram({SLACKLINE_COORDINATOR, "--port=" + port});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(port));
  EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
}

TEST(Process, WrongFlagsExitWithTwo) {
  for (const char* flag :
       {"--workers=0", "--workers=x", "--servers=100000", "--lease_ms=1", "--port=70000",
        "--start_timeout_s=-1", "--resume=latest", "--host=", "--bogus"}) {
    const SubprocessResult result = RunProgram({SLACKLINE_COORDINATOR, flag});
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(Process, AnAddressThatIsNoneIsAFlagError) {
  const SubprocessResult result = RunProgram({SLACKLINE_COORDINATOR, "--status=nowhere"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "--status=nowhere: expected host:port\n");
}

TEST(Process, NothingToResumeFromIsOneLine) {
  const slackline::testing::TempDirectory directory;
  const SubprocessResult result =
      RunProgram({SLACKLINE_COORDINATOR, "--checkpoint=" + directory.path(), "--resume=latest"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(directory.path()));
}

}  // namespace
}  // namespace slackline::server::coordinator
