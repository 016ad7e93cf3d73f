// Runs a program to its end and keeps what it printed: for tests of exit codes and messages.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/file.h"
#include "tests/testing/temp_directory.h"

namespace slackline::testing {

struct SubprocessResult {
  int exit_code = -1;  // -1: it did not start, or a signal ended it.
  std::string out;
  std::string err;
};

// arguments[0] is the program's path. Blocks; the test's own timeout bounds it.
inline SubprocessResult RunProgram(const std::vector<std::string>& arguments) {
  constexpr size_t kMaxOutputBytes = size_t{1} << 20;
  const TempDirectory directory;
  const std::string out = directory.Path("out");
  const std::string err = directory.Path("err");
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kFlags, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kFlags, 0600);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  SubprocessResult result;
  int wait_status = 0;
  if (error != 0 || waitpid(pid, &wait_status, 0) != pid) {
    ADD_FAILURE() << "cannot run " << argv[0];
    return result;
  }
  if (WIFEXITED(wait_status)) result.exit_code = WEXITSTATUS(wait_status);
  result.out = ReadFile(out, kMaxOutputBytes).value_or("");
  result.err = ReadFile(err, kMaxOutputBytes).value_or("");
  return result;
}

}  // namespace slackline::testing
