#include <memory>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/text_arguments.h"
#include "cli/whole_file.h"
#include "compressor/kvquant_calibration.h"
#include "evaluation/kvquant_calibrator.h"

namespace vericache {
namespace {

struct CalibrateArguments {
  TextArguments text;
  CalibrationOptions options;
};

void RunKvQuant(const CalibrateArguments& arguments) {
  const std::string path = arguments.text.output.empty() ? CalibrationFileOf(arguments.text.model)
                                                         : arguments.text.output;
  WholeFile file(path);
  const Model model(arguments.text.model,
                    {.threads = arguments.text.threads, .weights = {.packed = true}});
  const Tokenizer tokenizer(arguments.text.model);
  const std::vector<std::vector<TokenId>> texts = arguments.text.Tokens(tokenizer);
  Transformer transformer(model, arguments.text.threads);
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
  arguments->text.AddTo(*command, "MODEL.kvquant.json", arguments->options.tokens, 64,
                        arguments->options.window);
  command
      ->add_option("--outliers", arguments->options.outliers,
                   "Share of the numbers that are held apart, as of kvquant4")
      ->check(CLI::Range(0.0, 0.1))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  vericache calibrate kvquant -m model.gguf --text a.txt b.txt\n"
      "  vericache acceptance -m model.gguf --compressors kivi4 kvquant4 kvquant3");
  command->callback([arguments] { RunKvQuant(*arguments); });
}

}  // namespace vericache
