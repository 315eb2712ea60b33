// One file per subcommand; each adds itself to the command line.
#pragma once

#include "CLI/CLI.hpp"

namespace vericache {

// Exit codes of the program.
inline constexpr int kExitUserError = 2;
inline constexpr int kExitInterrupted = 130;

void AddGenerate(CLI::App& app);
void AddDoctor(CLI::App& app);

}  // namespace vericache
