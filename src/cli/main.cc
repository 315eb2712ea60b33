#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "ggml.h"
#include "llama.h"

namespace {

// What was asked for, as far as it is known: "vericache bench serve".
std::string CommandOf(const CLI::App& app) {
  std::string words = "vericache";
  for (auto parsed = app.get_subcommands(); !parsed.empty();
       parsed = parsed.front()->get_subcommands()) {
    words += " " + parsed.front()->get_name();
  }
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace vericache;
  // What the libraries have to say of an error is said by ours in one line.
  const auto silent = [](ggml_log_level, const char*, void*) {};
  ggml_log_set(silent, nullptr);
  llama_log_set(silent, nullptr);

  CLI::App app{
      "vericache: LLM inference on compressed KV caches with the output of the full cache"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "vericache " VERICACHE_VERSION);
  AddGenerate(app);
  AddServe(app);
  AddDoctor(app);
  AddBench(app);
  AddPredict(app);
  AddSimulate(app);
  AddAcceptance(app);
  AddTune(app);
  AddCalibrate(app);
  AddTrain(app);
  AddWorkloads(app);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const CLI::App* command) { return command->get_name() == argv[1]; })) {
    std::fprintf(stderr, "vericache: unknown command '%s' (see vericache --help)\n", argv[1]);
    return kExitUserError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "vericache: %s (see %s --help)\n", error.what(), CommandOf(app).c_str());
    return kExitUserError;
  } catch (const UserError& error) {
    std::fprintf(stderr, "vericache: %s\n", error.what());
    return kExitUserError;
  } catch (const RequestFailed&) {
    return kExitRequestFailed;
  } catch (const Interrupted&) {
    std::fprintf(stderr, "\nvericache: interrupted\n");
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "vericache: out of memory\n");
    return kExitUserError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vericache: %s\n", error.what());
    return 1;
  }
  return 0;
}
