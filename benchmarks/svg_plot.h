// Line plots as SVG, for --plot flags and the results that are committed.
// Threading: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace slackline::bench {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points = {};  // In order of x. Not finite: left out.
};

struct Plot {
  std::string title, x_label, y_label;
  // Logarithmic axes leave out what is not above 0.
  bool log_x = false, log_y = false;
  bool x_is_bytes = false;  // Ticks at powers of two, as "64 KiB".
  std::vector<Series> series = {};
};

// One document with the plots side by side. Empty plots show their axes.
std::string RenderSvg(const std::vector<Plot>& plots);
// Unavailable: the file cannot be written. An empty path is no file and OK.
Status WriteSvg(const std::string& path, const std::vector<Plot>& plots);

}  // namespace slackline::bench
