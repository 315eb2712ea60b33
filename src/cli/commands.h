// One file per subcommand; each adds itself to the command line.
#pragma once

#include "CLI/CLI.hpp"

namespace vericache {

// Exit codes of the program.
inline constexpr int kExitUserError = 2;
inline constexpr int kExitInterrupted = 130;
inline constexpr int kExitRequestFailed = 1;

// Thrown at the end of a run of which some requests failed, each with a message of its own.
class RequestFailed {};

void AddGenerate(CLI::App& app);
void AddServe(CLI::App& app);
void AddBench(CLI::App& app);
void AddBenchServe(CLI::App& bench);
void AddDoctor(CLI::App& app);
void AddPredict(CLI::App& app);
void AddSimulate(CLI::App& app);
void AddAcceptance(CLI::App& app);
void AddTune(CLI::App& app);
void AddCalibrate(CLI::App& app);
void AddTrain(CLI::App& app);
void AddWorkloads(CLI::App& app);

}  // namespace vericache
