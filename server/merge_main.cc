// slackline-merge: turns a checkpoint's shard files into one safetensors file for other programs.
#include <gflags/gflags.h>

#include <cstdio>
#include <iostream>

#include "common/flags.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/merge.h"

DEFINE_string(checkpoint, "",
              "Checkpoint: a step-* directory, or a directory of them (the latest is taken).");
DEFINE_string(output, "model.safetensors", "File to write; replaced if it exists.");

namespace {

using slackline::server::FindLatestCheckpoint;
using slackline::server::MergeCheckpoint;
using slackline::server::ReadManifest;

// `path` itself if it is a checkpoint, else the latest in it.
slackline::Result<std::string> ResolveCheckpoint(const std::string& path) {
  const auto manifest = ReadManifest(path);
  if (manifest || manifest.error().code() != slackline::StatusCode::kNotFound) return path;
  return FindLatestCheckpoint(path);
}

int Fail(const slackline::Status& status) {
  std::cerr << "slackline-merge: " << status.message() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  slackline::ParseFlags(
      argc, argv,
      {.name = "slackline-merge",
       .summary = "Verifies a checkpoint and writes its weights as one safetensors file with the "
                  "model's tensor names.",
       .examples = "slackline-merge --checkpoint runs/x/checkpoints --output model.safetensors",
       .groups = {{"Files", {"checkpoint", "output"}}}});
  slackline::InitLogging(argv[0]);
  if (FLAGS_checkpoint.empty()) {
    slackline::ExitOnFlagError(slackline::FlagStatus("checkpoint", "", "a directory"));
  }
  if (FLAGS_output.empty()) {
    slackline::ExitOnFlagError(slackline::FlagStatus("output", "", "a file"));
  }
  const slackline::Result<std::string> directory = ResolveCheckpoint(FLAGS_checkpoint);
  if (!directory) return Fail(directory.error());
  const slackline::Status status = MergeCheckpoint(*directory, FLAGS_output);
  if (!status.ok()) return Fail(status);
  std::cout << "wrote " << FLAGS_output << " from " << *directory << "\n";
  return 0;
}
