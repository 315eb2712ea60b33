#pragma once

#include <string_view>

namespace vericache {

// The page that shows what the server does, as src/server/dashboard.html is when this is built.
std::string_view DashboardPage();

}  // namespace vericache
