// The texts that workloads are made of, as they are in src/prompts/texts when this is built. They
// stay as they are, so that what was measured on them can be measured again.
#pragma once

#include <string_view>

namespace vericache {

std::string_view CodeText();   // C++ sources
std::string_view ProseText();  // paragraphs, separated by empty lines

}  // namespace vericache
