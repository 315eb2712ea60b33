#include <algorithm>
#include <memory>

#include "base/threads.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/whole_file.h"
#include "engine/compressor_for.h"
#include "evaluation/tuner.h"
#include "model/repeat.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

struct TuneArguments {
  std::string model;
  std::string prompts;
  std::vector<double> budgets = {0.05, 0.1, 0.17, 0.32};
  std::string output;
  TunerOptions tuner;
  int new_tokens = 96;
  int threads = HardwareThreads();
};

std::string FileOf(const TuneArguments& arguments, double budget) {
  return arguments.output + "-" + Fixed(budget, 2) + ".json";
}

void RunTune(const TuneArguments& arguments) {
  std::vector<std::unique_ptr<WholeFile>> files;
  files.reserve(arguments.budgets.size());
  for (const double budget : arguments.budgets) {
    files.push_back(std::make_unique<WholeFile>(FileOf(arguments, budget)));
  }
  const Model model(arguments.model, {.threads = arguments.threads, .weights = {.packed = true}});
  const Tokenizer tokenizer(arguments.model);
  Transformer transformer(model, arguments.threads);
  EvaluationOptions options{.new_tokens = arguments.new_tokens};
  for (const std::string& scorer : arguments.tuner.scorers) {
    const Compressor compressor = CompressorFor(scorer.empty() ? "none" : scorer, model);
    options.needs = options.needs | compressor.needs();
    // Where it blends, it is also tried with a refresh at each verify.
    options.needs.verified_window =
        std::max(options.needs.verified_window, RefreshOptions::kQueries);
  }
  options.is_end = [&tokenizer](TokenId token) { return tokenizer.IsEnd(token); };
  options.repeat = RepeatPromptOf(tokenizer);
  ProgressBar progress;
  std::vector<std::unique_ptr<DraftEvaluation>> prompts;
  for (const PromptText& prompt : ReadPrompts(arguments.prompts)) {
    const std::vector<TokenId> tokens = EncodePrompt(prompt, /*chat=*/false, tokenizer);
    prompts.push_back(std::make_unique<DraftEvaluation>(
        transformer, tokens, options,
        [&](int done, int total) { progress.Show(prompt.id + ": full cache", done, total); }));
  }
  const Tuner tuner(model, prompts, arguments.tuner, [&progress](int done, int total) {
    progress.Show("layers by themselves", done, total);
  });
  std::vector<std::vector<std::string>> rows = {
      {"budget", "bytes", "accepted of " + std::to_string(arguments.tuner.draft_length), "found",
       "file"}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    progress.Show("choices", static_cast<int>(i), static_cast<int>(files.size()));
    const TunedProfile tuned = tuner.Best(arguments.budgets[i]);
    files[i]->Finish(ToText(tuned.profile));
    rows.push_back({Fixed(arguments.budgets[i], 2), Fixed(tuned.bytes_ratio, 3),
                    Fixed(tuned.acceptance, 1), tuned.way,
                    FileOf(arguments, arguments.budgets[i])});
  }
  progress.Clear();
  WriteOut(FormatTable(rows));
}

}  // namespace

void AddTune(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tune", "Search a profile: what each layer keeps, in which formats");
  const auto arguments = std::make_shared<TuneArguments>();
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  command
      ->add_option("--prompts", arguments->prompts,
                   "JSONL file as of generate; other prompts than the profile is judged on")
      ->required();
  command
      ->add_option("-o,--output", arguments->output,
                   "Where profiles are written: NAME gives NAME-0.10.json and so on")
      ->required();
  command->add_option("--bytes", arguments->budgets, "Shares of the full cache's bytes, by commas")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  command->add_option(
      "--scorers", arguments->tuner.scorers,
      "Drop methods to choose from, separated by spaces (default: snapkv); \"\" for none");
  command->add_option("--keep", arguments->tuner.keeps, "Keep ratios to choose from, by commas")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command
      ->add_option("--positions", arguments->tuner.positions,
                   "Tokens of the prompt for which bytes are counted")
      ->check(CLI::Range(64, 1 << 24))
      ->capture_default_str();
  command
      ->add_option("--draft-length", arguments->tuner.draft_length, "Accepted tokens of how many")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--new-tokens", arguments->new_tokens, "Tokens of an answer, at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("-t,--threads", arguments->threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->footer(
      "Example:\n"
      "  vericache tune -m model.gguf --prompts prompts.jsonl --bytes 0.1,0.2 -o mine\n"
      "  vericache generate -m model.gguf -f text.txt --compressor profile:mine-0.10.json");
  command->callback([arguments] { RunTune(*arguments); });
}

}  // namespace vericache
