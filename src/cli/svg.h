// The pieces that pictures are made of.
#pragma once

#include <string>

namespace vericache {

// The begin of an SVG of this size, on white; "</svg>" ends it.
std::string SvgBegin(double width, double height);

// A line between two places; `style`: its attributes.
std::string SvgLine(double x1, double y1, double x2, double y2, const std::string& style);

// Any text at a place. `anchor`: start, middle or end.
std::string SvgLabel(double x, double y, const std::string& anchor, const std::string& text);

}  // namespace vericache
