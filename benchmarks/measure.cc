#include "benchmarks/measure.h"

#include <glog/logging.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/flags.h"

namespace slackline::bench {

double WallSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double CpuSeconds() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double ThreadSeconds() {
  timespec time = {};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

void FreeDeleter::operator()(float* floats) const { std::free(floats); }

FloatBuffer MakeFloats(size_t count, float value) {
  constexpr size_t kHugePageBytes = size_t{2} << 20;
  const size_t pages = count * sizeof(float) / kHugePageBytes + 1;
  void* memory = std::aligned_alloc(kHugePageBytes, pages * kHugePageBytes);
  CHECK(memory != nullptr) << "no memory for " << count << " floats";
  // A hint; without huge pages the figures are only less steady.
  (void)madvise(memory, pages * kHugePageBytes, MADV_HUGEPAGE);
  FloatBuffer buffer(static_cast<float*>(memory));
  std::fill_n(buffer.get(), count, value);
  return buffer;
}

void CopyPass(float* to, const float* from, size_t count) {
  std::memcpy(to, from, count * sizeof(float));
}

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

void Table::Print() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::printf("%-*s", static_cast<int>(widths[0]), row[0].c_str());
    for (size_t i = 1; i < row.size(); ++i) {
      std::printf("  %*s", static_cast<int>(widths[i]), row[i].c_str());
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::string FormatNumber(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string FormatBytes(size_t bytes) {
  static constexpr struct {
    size_t bytes;
    const char* name;
  } kUnits[] = {{size_t{1} << 30, " GiB"}, {size_t{1} << 20, " MiB"}, {size_t{1} << 10, " KiB"}};
  for (const auto& unit : kUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return std::to_string(bytes / unit.bytes) + unit.name;
    }
  }
  return std::to_string(bytes) + " B";
}

Status CheckJsonPath(const std::string& path) {
  if (path.empty()) return OkStatus();
  // Appending leaves what an earlier run wrote until there is something better.
  if (std::ofstream(path, std::ios::app)) return OkStatus();
  return FlagStatus("json", path, "a file that can be written, in a directory that exists");
}

Status WriteJson(const std::string& path, const nlohmann::json& value) {
  if (path.empty()) return OkStatus();
  std::ofstream file(path);
  file << value.dump(2) << '\n';
  file.close();
  if (file) return OkStatus();
  return Unavailable("cannot write '" + path + "': check that its directory exists");
}

}  // namespace slackline::bench
