#include <memory>

#include "base/threads.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/whole_file.h"
#include "compressor/kvquant_calibration.h"
#include "evaluation/kvquant_calibrator.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

struct CalibrateArguments {
  std::string model;
  std::vector<std::string> texts;
  std::string output;
  CalibrationOptions options;
  int threads = HardwareThreads();
};

void RunKvQuant(const CalibrateArguments& arguments) {
  const std::string path =
      arguments.output.empty() ? CalibrationFileOf(arguments.model) : arguments.output;
  WholeFile file(path);
  const Model model(arguments.model, {.threads = arguments.threads, .weights = {.packed = true}});
  const Tokenizer tokenizer(arguments.model);
  std::vector<std::vector<TokenId>> texts;
  texts.reserve(arguments.texts.size());
  for (const std::string& text : arguments.texts) {
    texts.push_back(tokenizer.Encode(ReadText(text), /*special=*/false));
  }
  Transformer transformer(model, arguments.threads);
  ProgressBar progress;
  const std::vector<KvQuant> layers = CalibrateKvQuant(
      transformer, texts, arguments.options,
      [&progress](int done, int total) { progress.Show("calibrating", done, total); });
  progress.Clear();
  file.Finish(ToText({.model = model.params().name, .layers = layers}));
  WriteOut(path + "\n");
}

}  // namespace

void AddCalibrate(CLI::App& app) {
  CLI::App* group = app.add_subcommand("calibrate", "Find what a format needs to know of a model");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand(
      "kvquant", "Levels, and ranges of key channels, for kvquant4, kvquant3 and kvquant2");
  const auto arguments = std::make_shared<CalibrateArguments>();
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  command
      ->add_option("--text", arguments->texts,
                   "Text files, separated by spaces, such as the model will see; \"-\" reads "
                   "standard input")
      ->required();
  command->add_option("-o,--out", arguments->output,
                      "Where it is written (default: MODEL.kvquant.json, which is found there)");
  command->add_option("--tokens", arguments->options.tokens, "Tokens that are looked at, at most")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command->add_option("--window", arguments->options.window, "Tokens of one context, at most")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--outliers", arguments->options.outliers,
                   "Share of the numbers that are held apart, as of kvquant4")
      ->check(CLI::Range(0.0, 0.1))
      ->capture_default_str();
  command->add_option("-t,--threads", arguments->threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  vericache calibrate kvquant -m model.gguf --text a.txt b.txt\n"
      "  vericache acceptance -m model.gguf --compressors kivi4 kvquant4 kvquant3");
  command->callback([arguments] { RunKvQuant(*arguments); });
}

}  // namespace vericache
