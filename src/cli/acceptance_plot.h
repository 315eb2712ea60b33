// A picture of how well compressed caches draft.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace vericache {

struct PlotPoint {
  double x = 0.0;  // bytes of the compressed cache over those of the full one, above 0
  double y = 0.0;  // accepted tokens of a round
};

// An SVG: accepted tokens over bytes, which are on a logarithmic scale; one line per compressor,
// its points in any order. `draft_length` is the top of the scale.
std::string AcceptanceSvg(const std::map<std::string, std::vector<PlotPoint>>& lines,
                          int draft_length, const std::string& title);

}  // namespace vericache
