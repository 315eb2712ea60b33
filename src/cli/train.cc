#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/text_arguments.h"
#include "cli/whole_file.h"
#include "evaluation/kvzap_trainer.h"
#include "model/score_predictor.h"

namespace vericache {
namespace {

struct TrainArguments {
  TextArguments text;
  TrainingOptions options;
};

void RunKvZap(const TrainArguments& arguments) {
  const std::string path =
      arguments.text.output.empty() ? PredictorFileOf(arguments.text.model) : arguments.text.output;
  WholeFile file(path);
  const Model model(arguments.text.model,
                    {.threads = arguments.text.threads, .weights = {.packed = true}});
  const Tokenizer tokenizer(arguments.text.model);
  const std::vector<std::vector<TokenId>> texts = arguments.text.Tokens(tokenizer);
  Transformer transformer(model, arguments.text.threads);
  ProgressBar progress;
  const std::vector<Fit> fits =
      TrainKvZap(transformer, texts, RepeatPromptOf(tokenizer), arguments.options,
                 [&progress](int done, int total) { progress.Show("training", done, total); });
  progress.Clear();
  std::vector<PredictorValues> layers;
  double sum = 0.0;
  for (const Fit& fit : fits) {
    layers.push_back(fit.values);
    sum += fit.r2;
  }
  file.Finish(PredictorGguf(model.params().name, layers));
  const auto least = std::ranges::min_element(fits, {}, &Fit::r2);
  WriteOut(path + "\nof the scores' variance on text that was held out it tells " +
           Fixed(100.0 * sum / static_cast<double>(fits.size()), 0) +
           "% in the mean of the layers, and " + Fixed(100.0 * least->r2, 0) + "% in layer " +
           std::to_string(least - fits.begin()) + ", the worst\n");
}

}  // namespace

void AddTrain(CLI::App& app) {
  CLI::App* group = app.add_subcommand("train", "Train what a compressor needs of a model");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand(
      "kvzap", "The networks of kvzap, which tell KVzip's scores while a prompt is computed");
  const auto arguments = std::make_shared<TrainArguments>();
  arguments->text.AddTo(*command, "MODEL.kvzap.gguf", arguments->options.tokens, 128,
                        arguments->options.window);
  command->add_option("--epochs", arguments->options.epochs, "How often all of them are seen")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  vericache train kvzap -m model.gguf --text a.txt b.txt\n"
      "  vericache generate -m model.gguf -f long.txt --compressor kvzap --keep 0.2");
  command->callback([arguments] { RunKvZap(*arguments); });
}

}  // namespace vericache
