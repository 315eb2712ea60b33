#include "cli/timeline.h"

#include <algorithm>
#include <array>

#include "cli/output.h"
#include "cli/svg.h"

namespace vericache {
namespace {

constexpr double kLeft = 70.0;
constexpr double kTop = 52.0;
constexpr double kWidth = 1000.0;
constexpr double kRow = 18.0;
constexpr double kBar = 12.0;

struct Style {
  const char* name;
  const char* color;
};

Style StyleOf(TimelineSpan::Kind kind) {
  switch (kind) {
    case TimelineSpan::Kind::kPrefill:
      return {"prefill", "#b0b0b0"};
    case TimelineSpan::Kind::kDraft:
      return {"draft", "#9ecae1"};
    case TimelineSpan::Kind::kReload:
      return {"reload (link)", "#fdae6b"};
    case TimelineSpan::Kind::kVerify:
      return {"verify", "#d62728"};
  }
  return {"?", "#000000"};
}

std::string Rectangle(double x, double y, double width, double height, const std::string& color) {
  return "<rect x=\"" + Fixed(x, 2) + "\" y=\"" + Fixed(y, 2) + "\" width=\"" + Fixed(width, 2) +
         "\" height=\"" + Fixed(height, 2) + "\" fill=\"" + color + "\"/>\n";
}

}  // namespace

std::string TimelineSvg(const std::vector<TimelineSpan>& spans, int requests, double end,
                        const std::string& title) {
  const double link_y = kTop + kRow * requests + 6.0;
  const double height = link_y + kRow + 34.0;
  std::string svg = SvgBegin(kLeft + kWidth + 20.0, height) + SvgLabel(kLeft, 16.0, "start", title);
  double legend = kLeft;
  for (const auto kind : {TimelineSpan::Kind::kPrefill, TimelineSpan::Kind::kDraft,
                          TimelineSpan::Kind::kReload, TimelineSpan::Kind::kVerify}) {
    svg += Rectangle(legend, 26.0, 10.0, 10.0, StyleOf(kind).color) +
           SvgLabel(legend + 14.0, 35.0, "start", StyleOf(kind).name);
    legend += 110.0;
  }
  for (int request = 0; request < requests; ++request) {
    svg += SvgLabel(kLeft - 8.0, kTop + kRow * request + 10.0, "end",
                    "request " + std::to_string(request));
  }
  svg += SvgLabel(kLeft - 8.0, link_y + 10.0, "end", "link");
  for (const TimelineSpan& span : spans) {
    if (span.begin >= end || span.end <= 0.0) {
      continue;
    }
    const double x = kLeft + kWidth * span.begin / end;
    // Neighbours stay apart.
    const double width = std::max(0.4, kWidth * (std::min(span.end, end) - span.begin) / end - 0.3);
    const Style style = StyleOf(span.kind);
    const bool reload = span.kind == TimelineSpan::Kind::kReload;
    if (span.request < requests) {
      const double y = kTop + kRow * span.request;
      svg += Rectangle(x, reload ? y + 9.0 : y, width, reload ? 5.0 : 9.0, style.color);
    }
    if (reload) {
      svg += Rectangle(x, link_y, width, kBar, style.color);
    }
  }
  for (int tick = 0; tick <= 10; ++tick) {
    const double x = kLeft + kWidth * tick / 10.0;
    svg += SvgLabel(x, link_y + kRow + 14.0, "middle", Fixed(end * tick / 10.0, 2) + " s");
  }
  return svg + "</svg>\n";
}

}  // namespace vericache
