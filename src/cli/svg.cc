#include "cli/svg.h"

#include "cli/output.h"

namespace vericache {

std::string SvgBegin(double width, double height) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Fixed(width, 0) + "\" height=\"" +
         Fixed(height, 0) + "\" font-family=\"sans-serif\" font-size=\"11\">\n" +
         "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
}

std::string SvgLine(double x1, double y1, double x2, double y2, const std::string& style) {
  return "<line x1=\"" + Fixed(x1, 1) + "\" y1=\"" + Fixed(y1, 1) + "\" x2=\"" + Fixed(x2, 1) +
         "\" y2=\"" + Fixed(y2, 1) + "\" " + style + "/>\n";
}

namespace {

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20;
    escaped += c == '&'   ? "&amp;"
               : c == '<' ? "&lt;"
               : c == '>' ? "&gt;"
               : control  ? " "
                          : std::string(1, c);
  }
  return escaped;
}

}  // namespace

std::string SvgLabel(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + Fixed(x, 1) + "\" y=\"" + Fixed(y, 1) + "\" text-anchor=\"" + anchor +
         "\">" + Escaped(text) + "</text>\n";
}

}  // namespace vericache
