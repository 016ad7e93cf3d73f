#include "benchmarks/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "benchmarks/measure.h"

namespace slackline::bench {
namespace {

// Pixels.
constexpr double kWidth = 480, kHeight = 360;
constexpr double kLeft = 70, kRight = 20, kTop = 40, kBottom = 55;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr int kMaxTicks = 7;
// Distinct also for most of those who do not see all colours (Okabe and Ito, 2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000"};

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// One dimension: values to pixels, and where its ticks are.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;

  // 0 to 1.
  double Place(double value) const {
    if (log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
    return (value - low) / (high - low);
  }
  bool Shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
};

// Steps of 1, 2 or 5 times a power of ten.
void AddLinearTicks(Axis* axis) {
  const double rough = (axis->high - axis->low) / (kMaxTicks - 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  axis->high = std::ceil(axis->high / step) * step;
  for (int i = 0; axis->low + i * step <= axis->high * (1 + 1e-9) && i <= 2 * kMaxTicks; ++i) {
    axis->ticks.push_back(axis->low + i * step);
  }
}

void AddLogTicks(Axis* axis, double base) {
  const double first = std::floor(std::log(axis->low) / std::log(base) + 1e-9);
  const double last = std::ceil(std::log(axis->high) / std::log(base) - 1e-9);
  const double step = std::max(1.0, std::ceil((last - first) / (kMaxTicks - 1)));
  for (double i = first; i <= last; i += step) axis->ticks.push_back(std::pow(base, i));
  axis->low = std::pow(base, first);
  axis->high = std::max(axis->ticks.back(), axis->high);
}

Axis MakeAxis(const Plot& plot, bool is_x) {
  Axis axis;
  axis.log = is_x ? plot.log_x : plot.log_y;
  double low = INFINITY;
  double high = -INFINITY;
  for (const Series& series : plot.series) {
    for (const auto& point : series.points) {
      const double value = is_x ? point.first : point.second;
      if (!axis.Shows(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (low > high) low = axis.log ? 1 : 0, high = axis.log ? 10 : 1;
  // Bandwidths and times are compared from 0 on.
  if (!is_x && !axis.log) low = std::min(low, 0.0);
  if (low == high) high = axis.log ? low * 10 : low + 1;
  axis.low = low;
  axis.high = high;
  if (!axis.log) {
    AddLinearTicks(&axis);
  } else {
    AddLogTicks(&axis, is_x && plot.x_is_bytes ? 2 : 10);
  }
  return axis;
}

void DrawAxes(const Plot& plot, const Axis& x, const Axis& y, std::ostream& out) {
  out << "<text class='title' x='" << kLeft + kPlotWidth / 2 << "' y='20'>" << Escape(plot.title)
      << "</text>\n<text x='" << kLeft + kPlotWidth / 2 << "' y='" << kHeight - 10 << "'>"
      << Escape(plot.x_label) << "</text>\n<text transform='translate(15 " << kTop + kPlotHeight / 2
      << ") rotate(-90)'>" << Escape(plot.y_label) << "</text>\n";
  for (const double tick : x.ticks) {
    const double at = kLeft + x.Place(tick) * kPlotWidth;
    out << "<path class='grid' d='M" << at << " " << kTop << "v" << kPlotHeight << "'/>"
        << "<text x='" << at << "' y='" << kTop + kPlotHeight + 18 << "'>"
        << (plot.x_is_bytes ? FormatBytes(static_cast<size_t>(tick)) : Short(tick)) << "</text>\n";
  }
  for (const double tick : y.ticks) {
    const double at = kTop + (1 - y.Place(tick)) * kPlotHeight;
    out << "<path class='grid' d='M" << kLeft << " " << at << "h" << kPlotWidth << "'/>"
        << "<text class='end' x='" << kLeft - 6 << "' y='" << at + 4 << "'>" << Short(tick)
        << "</text>\n";
  }
  out << "<rect class='frame' x='" << kLeft << "' y='" << kTop << "' width='" << kPlotWidth
      << "' height='" << kPlotHeight << "'/>\n";
}

void DrawSeries(const Plot& plot, const Axis& x, const Axis& y, std::ostream& out) {
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    const char* colour = kColours[i % std::size(kColours)];
    std::ostringstream line;
    for (const auto& [at_x, at_y] : series.points) {
      if (!x.Shows(at_x) || !y.Shows(at_y)) continue;
      const double pixel_x = kLeft + x.Place(at_x) * kPlotWidth;
      const double pixel_y = kTop + (1 - y.Place(at_y)) * kPlotHeight;
      line << (line.tellp() > 0 ? " " : "") << pixel_x << "," << pixel_y;
      if (series.points.size() <= 40) {
        out << "<circle r='2.5' fill='" << colour << "' cx='" << pixel_x << "' cy='" << pixel_y
            << "'/>";
      }
    }
    const double legend_y = kTop + 14 + 16 * static_cast<double>(i);
    out << "<polyline stroke='" << colour << "' points='" << line.str() << "'/>\n<path stroke='"
        << colour << "' class='key' d='M" << kLeft + 8 << " " << legend_y << "h18'/><text "
        << "class='start' x='" << kLeft + 32 << "' y='" << legend_y + 4 << "'>"
        << Escape(series.name) << "</text>\n";
  }
}

}  // namespace

std::string RenderSvg(const std::vector<Plot>& plots) {
  std::ostringstream out;
  const double width = kWidth * static_cast<double>(std::max<size_t>(plots.size(), 1));
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << width << "' height='" << kHeight
      << "' viewBox='0 0 " << width << " " << kHeight << "'>\n"
      << "<style>text{font:12px sans-serif;text-anchor:middle}.title{font-weight:bold}"
         ".end{text-anchor:end}.start{text-anchor:start}.grid{stroke:#ddd}"
         ".frame{fill:none;stroke:#555}polyline{fill:none;stroke-width:1.8}"
         ".key{stroke-width:3}</style>\n<rect width='100%' height='100%' fill='white'/>\n";
  for (size_t i = 0; i < plots.size(); ++i) {
    const Axis x = MakeAxis(plots[i], /*is_x=*/true);
    const Axis y = MakeAxis(plots[i], /*is_x=*/false);
    out << "<g transform='translate(" << kWidth * static_cast<double>(i) << " 0)'>\n";
    DrawAxes(plots[i], x, y, out);
    DrawSeries(plots[i], x, y, out);
    out << "</g>\n";
  }
  out << "</svg>\n";
  return out.str();
}

Status WriteSvg(const std::string& path, const std::vector<Plot>& plots) {
  if (path.empty()) return OkStatus();
  std::ofstream file(path);
  file << RenderSvg(plots);
  file.close();
  if (file) return OkStatus();
  return Unavailable("cannot write '" + path + "': check that its directory exists");
}

}  // namespace slackline::bench
