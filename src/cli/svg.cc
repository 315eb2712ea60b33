#include "cli/svg.h"

#include "cli/output.h"

namespace vericache {

std::string SvgBegin(double width, double height) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Fixed(width, 0) + "\" height=\"" +
         Fixed(height, 0) + "\" font-family=\"sans-serif\" font-size=\"11\">\n" +
         "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
}

std::string SvgLabel(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + Fixed(x, 1) + "\" y=\"" + Fixed(y, 1) + "\" text-anchor=\"" + anchor +
         "\">" + text + "</text>\n";
}

}  // namespace vericache
