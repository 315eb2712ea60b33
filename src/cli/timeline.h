// A picture of a simulated run.
#pragma once

#include <string>
#include <vector>

#include "perfmodel/simulator.h"

namespace vericache {

// An SVG: one line for each of the first requests, its drafts, reloads and verifies over time, and
// below them the link. Spans that begin after `end` seconds are left out.
std::string TimelineSvg(const std::vector<TimelineSpan>& spans, int requests, double end,
                        const std::string& title);

}  // namespace vericache
