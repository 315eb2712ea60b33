#include "cli/load_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/output.h"
#include "cli/svg.h"

namespace vericache {
namespace {

constexpr double kLeft = 50.0;
constexpr double kTop = 36.0;
constexpr double kWidth = 560.0;
constexpr double kHeight = 300.0;
constexpr double kLegend = 160.0;
constexpr double kLeast = 1e-3;
constexpr double kDecades = 6.0;
constexpr std::array<const char*, 3> kColors = {"#1f77b4", "#ff7f0e", "#2ca02c"};

double X(double seconds) {
  return kLeft +
         kWidth * std::clamp(std::log10(std::max(seconds, kLeast) / kLeast) / kDecades, 0.0, 1.0);
}
double Y(double share) { return kTop + kHeight * (1.0 - share); }

constexpr const char* kGrid = "stroke=\"#dddddd\"";

}  // namespace

std::string LoadSvg(const std::vector<std::pair<std::string, std::vector<double>>>& values,
                    const std::string& title) {
  std::string svg = SvgBegin(kLeft + kWidth + kLegend, kTop + kHeight + 46.0) +
                    SvgLabel(kLeft, 18.0, "start", title);
  for (const char* seconds : {"0.001", "0.01", "0.1", "1", "10", "100", "1000"}) {
    const double x = X(std::stod(seconds));
    svg += SvgLine(x, kTop, x, kTop + kHeight, kGrid) +
           SvgLabel(x, kTop + kHeight + 16.0, "middle", seconds);
  }
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    svg += SvgLine(kLeft, Y(share), kLeft + kWidth, Y(share), kGrid) +
           SvgLabel(kLeft - 6.0, Y(share) + 4.0, "end", Fixed(100.0 * share, 0) + " %");
  }
  svg += SvgLabel(kLeft + kWidth / 2.0, kTop + kHeight + 34.0, "middle", "seconds");
  for (std::size_t line = 0; line < values.size(); ++line) {
    const auto& [name, sorted] = values[line];
    const std::string color = kColors[line % kColors.size()];
    std::string points;
    const std::size_t step = std::max<std::size_t>(1, sorted.size() / 400);
    for (std::size_t i = 0; i < sorted.size(); i += step) {
      points += Fixed(X(sorted[i]), 1) + "," +
                Fixed(Y(static_cast<double>(i + 1) / static_cast<double>(sorted.size())), 1) + " ";
    }
    svg += "<polyline points=\"" + points + "\" fill=\"none\" stroke=\"" + color +
           "\" stroke-width=\"2\"/>\n";
    const double y = kTop + 18.0 * static_cast<double>(line + 1);
    svg += "<rect x=\"" + Fixed(kLeft + kWidth + 14.0, 1) + "\" y=\"" + Fixed(y - 9.0, 1) +
           "\" width=\"10\" height=\"10\" fill=\"" + color + "\"/>\n" +
           SvgLabel(kLeft + kWidth + 30.0, y, "start", name);
  }
  return svg + "</svg>\n";
}

}  // namespace vericache
