#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vericache {

// An SVG: for each name the share of its values, which are sorted, that are at most so many
// seconds; on a logarithmic scale.
std::string LoadSvg(const std::vector<std::pair<std::string, std::vector<double>>>& values,
                    const std::string& title);

}  // namespace vericache
