// What every benchmark needs: clocks, medians, memory traffic to compare with, tables and JSON.
//
// A machine that does other things as well makes single timings worthless. So a benchmark repeats
// the thing measured and its yardstick in turn, and reports medians of their ratios.
// Threading: none of this is thread-safe; a Table or buffer belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/status.h"

namespace slackline::bench {

// Monotonic seconds, and seconds of processor time (user and system) that this process and the
// calling thread used.
double WallSeconds();
double CpuSeconds();
double ThreadSeconds();

// Of a copy of the values; 0 for none. Median is the mean of the middle two for an even count.
double Median(std::vector<double> values);
// The value below which `fraction` (0 to 1) of the values lie, by nearest rank.
double Percentile(std::vector<double> values, double fraction);

// `count` floats, all set to `value`, so that their pages exist. They ask for huge pages: with
// ordinary ones, where the system happens to place them moves the same pass by a fifth.
struct FreeDeleter {
  void operator()(float* floats) const;
};
using FloatBuffer = std::unique_ptr<float[], FreeDeleter>;
FloatBuffer MakeFloats(size_t count, float value);

// The yardsticks, each one pass: counted bytes are those that the program reads and writes.
void CopyPass(float* to, const float* from, size_t count);               // 8 a value
void TriadPass(float* a, const float* b, const float* c, size_t count);  // 12: a = b + s*c
void TriadInPlacePass(float* a, const float* b, size_t count);           // 12: a = a + s*b
inline constexpr size_t kCopyBytes = 8;
inline constexpr size_t kTriadBytes = 12;

// Seconds of processor time that `pass` takes on the calling thread: for work that never sleeps,
// the wall time less the time that the machine gave to other programs.
template <class Pass>
double TimePass(const Pass& pass) {
  const double start = ThreadSeconds();
  pass();
  return ThreadSeconds() - start;
}

// A table printed with aligned columns: the first to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // As many cells as the header has.
  void AddRow(std::vector<std::string> cells);
  // To standard output.
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "12.35" with `digits` after the point.
std::string FormatNumber(double value, int digits);
// "64 KiB", "1 MiB": exact multiples only, else bytes.
std::string FormatBytes(size_t bytes);

// Whether --json's file can be written, before anything is measured.
Status CheckJsonPath(const std::string& path);
// Writes `value` to a file, indented. An empty path is no file and OK.
Status WriteJson(const std::string& path, const nlohmann::json& value);

}  // namespace slackline::bench
