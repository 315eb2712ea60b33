#include "cli/acceptance_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/output.h"
#include "cli/svg.h"

namespace vericache {
namespace {

constexpr double kLeft = 56.0;
constexpr double kTop = 36.0;
constexpr double kWidth = 620.0;
constexpr double kHeight = 380.0;
constexpr double kLegend = 190.0;
constexpr double kLeast = 0.01;  // of bytes

constexpr std::array<const char*, 10> kColors = {"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728",
                                                 "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
                                                 "#bcbd22", "#17becf"};

double X(double bytes) {
  return kLeft + kWidth * (1.0 - std::log(std::clamp(bytes, kLeast, 1.0)) / std::log(kLeast));
}

double Y(double accepted, int draft_length) {
  return kTop + kHeight * (1.0 - accepted / draft_length);
}

}  // namespace

std::string AcceptanceSvg(const std::map<std::string, std::vector<PlotPoint>>& lines,
                          int draft_length, const std::string& title) {
  const double height =
      std::max(kTop + kHeight + 50.0, kTop + 16.0 * static_cast<double>(lines.size()) + 20.0);
  std::string svg =
      SvgBegin(kLeft + kWidth + kLegend, height) + SvgLabel(kLeft, 18.0, "start", title);
  const std::string grid = "stroke=\"#dddddd\"";
  for (const double bytes : {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0}) {
    svg += SvgLine(X(bytes), kTop, X(bytes), kTop + kHeight, grid) +
           SvgLabel(X(bytes), kTop + kHeight + 16.0, "middle", Fixed(bytes, 2));
  }
  for (int i = 0; i <= 5; ++i) {
    const double accepted = draft_length * i / 5.0;
    svg +=
        SvgLine(kLeft, Y(accepted, draft_length), kLeft + kWidth, Y(accepted, draft_length), grid) +
        SvgLabel(kLeft - 6.0, Y(accepted, draft_length) + 4.0, "end", Fixed(accepted, 1));
  }
  svg += SvgLabel(kLeft + kWidth / 2.0, kTop + kHeight + 36.0, "middle",
                  "bytes of the compressed cache over those of the full one") +
         SvgLabel(kLeft, 32.0, "start",
                  "accepted tokens of " + std::to_string(draft_length) + " drafted");
  std::size_t index = 0;
  for (const auto& [name, unsorted] : lines) {
    std::vector<PlotPoint> points = unsorted;
    std::ranges::sort(points, {}, &PlotPoint::x);
    const std::string color = kColors[index % kColors.size()];
    const std::string dash = index >= kColors.size() ? " stroke-dasharray=\"4 3\"" : "";
    std::string path;
    for (const PlotPoint& point : points) {
      const std::string x = Fixed(X(point.x), 1);
      const std::string y = Fixed(Y(point.y, draft_length), 1);
      path += (path.empty() ? "" : " ") + x + "," + y;
      svg += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"3\" fill=\"" + color + "\"/>\n";
    }
    svg +=
        "<polyline points=\"" + path + "\" fill=\"none\" stroke=\"" + color + "\"" + dash + "/>\n";
    const double y = kTop + 16.0 * static_cast<double>(index);
    svg += SvgLine(kLeft + kWidth + 12.0, y, kLeft + kWidth + 30.0, y,
                   "stroke=\"" + color + "\" stroke-width=\"3\"" + dash) +
           SvgLabel(kLeft + kWidth + 36.0, y + 4.0, "start", name);
    ++index;
  }
  return svg + "</svg>\n";
}

}  // namespace vericache
