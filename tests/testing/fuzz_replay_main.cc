// Runs a fuzz target over the files of its committed corpus: what the ordinary test run does with
// the targets that libFuzzer explores in the fuzz preset. A target reports a defect by aborting.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxInputBytes = size_t{1} << 20;

void RunOne(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  size_t inputs = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) {
    const auto bytes = slackline::ReadFile(entry.path().string(), kMaxInputBytes);
    if (!bytes) {
      std::fprintf(stderr, "%s\n", bytes.error().message().c_str());
      return 1;
    }
    // Named before it runs, so that an abort says which input it was.
    std::printf("%s\n", entry.path().filename().c_str());
    std::fflush(stdout);
    RunOne(*bytes);
    // The same input cut short, as a peer or a disk may do.
    RunOne(bytes->substr(0, bytes->size() / 2));
    ++inputs;
  }
  if (inputs == 0) {
    std::fprintf(stderr, "%s: no inputs to replay\n", argv[1]);
    return 1;
  }
  RunOne("");
  std::printf("%zu inputs\n", inputs);
  return 0;
}
