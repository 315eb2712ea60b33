#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "cli/acceptance_plot.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/picture.h"
#include "cli/weights_argument.h"
#include "engine/compressor_for.h"
#include "evaluation/draft_quality.h"
#include "model/score_predictor.h"
#include "prompts/prompt_file.h"
#include "prompts/workloads.h"

namespace vericache {
namespace {

struct AcceptanceArguments {
  std::string model;
  std::string prompts;
  std::vector<std::string> workloads;
  int context = 4000;
  int new_tokens = 128;
  std::vector<std::string> compressors;
  std::vector<double> keeps = {0.5, 0.2, 0.1, 0.05};
  std::vector<int> draft_lengths = {25, 8, 16, 40};
  unsigned seed = 1;
  WeightsArgument weights;
  int threads = HardwareThreads();
  bool json = false;
  std::string plot;
};

struct NamedPrompt {
  std::string workload;
  std::vector<TokenId> tokens;
};

// One compressor at one keep ratio, over all prompts.
struct Cell {
  std::string compressor;
  double keep = 1.0;
  std::vector<DraftQuality> by_prompt;
};

std::vector<NamedPrompt> GatherPrompts(const AcceptanceArguments& arguments,
                                       const Tokenizer& tokenizer, int context) {
  std::vector<PromptText> texts;
  std::vector<std::string> names;
  if (!arguments.prompts.empty()) {
    texts = ReadPrompts(arguments.prompts);
    for (const PromptText& text : texts) {
      names.push_back(text.id);
    }
  } else {
    names = arguments.workloads;
    if (names.empty()) {
      for (const WorkloadKind& workload : Workloads()) {
        names.emplace_back(workload.name);
      }
    }
    for (const std::string& name : names) {
      texts.push_back(MakeWorkload(name, arguments.context, arguments.seed, CounterOf(tokenizer)));
    }
  }
  std::vector<NamedPrompt> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    prompts.push_back(
        {.workload = names[i], .tokens = EncodePrompt(texts[i], /*chat=*/false, tokenizer)});
    const std::size_t tokens = prompts.back().tokens.size();
    if (tokens + static_cast<std::size_t>(arguments.new_tokens) >
        static_cast<std::size_t>(context)) {
      throw UserError(names[i] + " has " + std::to_string(tokens) + " tokens, which with " +
                      std::to_string(arguments.new_tokens) +
                      " new ones are more than the model's context of " + std::to_string(context));
    }
  }
  return prompts;
}

// Every compressor at every keep ratio; those whose keep ratio is not asked for once.
// Of all, those that this model, or what is there for it, does not serve are left out, and named.
std::vector<Cell> Cells(const AcceptanceArguments& arguments, const Model& model,
                        std::vector<std::string>& left_out) {
  std::vector<std::string> names = arguments.compressors;
  const bool all = names.empty();
  if (all) {
    names = CompressorNames();
    const std::vector<std::string> alone = names;
    for (const std::string& scorer : alone) {
      for (const std::string& format : alone) {
        if (MakeCompressor(scorer).scorer && MakeCompressor(format).format) {
          names.push_back(scorer + "+" + format);
        }
      }
    }
  }
  std::vector<Cell> cells;
  for (const std::string& name : names) {
    try {
      const bool asks = CompressorFor(name, model).takes_keep();
      for (const double keep : asks ? arguments.keeps : std::vector<double>{1.0}) {
        cells.push_back({.compressor = name, .keep = keep, .by_prompt = {}});
      }
    } catch (const UserError& error) {
      if (!all) {
        throw;
      }
      if (name.find('+') == std::string::npos) {
        left_out.push_back(name + " was left out: " + error.what());
      }
    }
  }
  return cells;
}

// The part of a compressor's name that says what is looked at while a prompt is computed.
std::string ScorerOf(const std::string& name) { return name.substr(0, name.find('+')); }

template <typename Of>
double Mean(const std::vector<DraftQuality>& qualities, const Of& of) {
  double sum = 0.0;
  for (const DraftQuality& quality : qualities) {
    sum += of(quality);
  }
  return qualities.empty() ? 0.0 : sum / static_cast<double>(qualities.size());
}

// Over the prompts that have rounds of this draft length; nullopt where none has.
std::optional<double> MeanAcceptance(const Cell& cell, std::size_t draft_length) {
  double sum = 0.0;
  int count = 0;
  for (const DraftQuality& quality : cell.by_prompt) {
    if (const auto length = quality.rounds[draft_length].acceptance_length()) {
      sum += *length;
      ++count;
    }
  }
  return count == 0 ? std::nullopt : std::optional(sum / count);
}

std::string Table(const std::vector<Cell>& cells, const std::vector<int>& draft_lengths) {
  std::vector<std::size_t> order(draft_lengths.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return draft_lengths[i]; });
  std::vector<std::vector<std::string>> rows = {{"compressor", "keep", "bytes", "agree", "KL"}};
  for (const std::size_t i : order) {
    rows[0].push_back("of " + std::to_string(draft_lengths[i]));
  }
  rows[0].emplace_back("compress");
  const bool refreshes = std::ranges::any_of(
      cells, [](const Cell& cell) { return MakeCompressor(cell.compressor).refreshes(); });
  if (refreshes) {
    rows[0].emplace_back("refresh");
    rows[0].emplace_back("hook");
  }
  for (const Cell& cell : cells) {
    std::vector<std::string> row = {
        cell.compressor, Fixed(cell.keep, 2),
        Fixed(Mean(cell.by_prompt, [](const auto& each) { return each.bytes_ratio(); }), 3),
        Fixed(100.0 * Mean(cell.by_prompt, [](const auto& each) { return each.agreement; }), 1) +
            "%",
        Fixed(Mean(cell.by_prompt, [](const auto& each) { return each.kl; }), 4)};
    for (const std::size_t i : order) {
      const std::optional<double> length = MeanAcceptance(cell, i);
      row.push_back(length ? Fixed(*length, 1) : "-");
    }
    row.push_back(
        Fixed(1e3 * Mean(cell.by_prompt, [](const auto& each) { return each.compress_s; }), 0) +
        " ms");
    if (refreshes) {
      const double seconds = Mean(cell.by_prompt, [](const auto& each) { return each.refresh_s; });
      row.push_back(seconds > 0.0 ? Fixed(1e3 * seconds, 0) + " ms" : "-");
      const double hook = Mean(cell.by_prompt, [](const auto& each) { return each.hook_s; });
      row.push_back(hook > 0.0 ? Fixed(1e6 * hook, 2) + " us" : "-");
    }
    rows.push_back(std::move(row));
  }
  return FormatTable(rows);
}

// What compressors have to say of this model, each once.
std::string Notes(const std::vector<Compressor>& compressors,
                  const std::vector<std::string>& left_out) {
  std::string notes;
  for (const std::string& each : left_out) {
    notes += "\n" + each;
  }
  for (std::size_t i = 0; i < compressors.size(); ++i) {
    const bool said = i > 0 && compressors[i].name == compressors[i - 1].name;
    if (!compressors[i].note.empty() && !said) {
      notes += "\n" + compressors[i].name + ": " + compressors[i].note;
    }
  }
  return notes.empty() ? "" : notes + "\n";
}

nlohmann::ordered_json ToJson(const std::vector<Cell>& cells,
                              const std::vector<NamedPrompt>& prompts) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Cell& cell : cells) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const DraftQuality& quality = cell.by_prompt[i];
      for (const RoundQuality& rounds : quality.rounds) {
        nlohmann::ordered_json object;
        object["compressor"] = cell.compressor;
        object["keep"] = cell.keep;
        object["workload"] = prompts[i].workload;
        object["context"] = prompts[i].tokens.size();
        object["x"] = rounds.draft_length;
        const std::optional<double> length = rounds.acceptance_length();
        object["acceptance_length"] =
            length ? nlohmann::ordered_json(*length) : nlohmann::ordered_json(nullptr);
        object["rounds"] = rounds.rounds;
        object["bytes_ratio"] = quality.bytes_ratio();
        object["argmax_agreement"] = quality.agreement;
        object["kl"] = quality.kl;
        object["compressed_cache_bytes"] = quality.compressed.count;
        object["full_cache_bytes"] = quality.full.count;
        object["compress_s"] = quality.compress_s;
        object["refresh_s"] = quality.refresh_s;
        object["hook_s"] = quality.hook_s;
        results.push_back(std::move(object));
      }
    }
  }
  return results;
}

void RunAcceptance(const AcceptanceArguments& arguments) {
  std::optional<PictureFile> plot;
  if (!arguments.plot.empty()) {
    plot.emplace(arguments.plot);
  }
  const Model model(arguments.model,
                    {.threads = arguments.threads,
                     .weights = arguments.weights.For(arguments.model, arguments.threads)});
  const Tokenizer tokenizer(arguments.model);
  std::vector<std::string> left_out;
  std::vector<Cell> cells = Cells(arguments, model, left_out);
  EvaluationOptions options{.new_tokens = arguments.new_tokens};
  std::vector<Compressor> compressors;
  for (const Cell& cell : cells) {
    Compressor& compressor = compressors.emplace_back(CompressorFor(cell.compressor, model));
    const auto& network = options.needs.predictor;
    if (compressor.predictor && network && compressor.predictor->path() != network->path()) {
      throw UserError("the networks " + network->path() + " and " + compressor.predictor->path() +
                      " cannot be judged at once");
    }
    if (network) {
      compressor.predictor = network;  // once in memory
    }
    options.needs = options.needs | compressor.needs();
  }
  options.repeat = RepeatPromptOf(tokenizer);
  options.is_end = [&tokenizer](TokenId token) { return tokenizer.IsEnd(token); };
  Transformer transformer(model, arguments.threads);
  const std::vector<NamedPrompt> prompts =
      GatherPrompts(arguments, tokenizer, model.params().context);

  ProgressBar progress;
  std::vector<std::vector<std::string>> about = {
      {"workload", "prompt", "answer", "repeats itself", "repeats the prompt"}};
  nlohmann::ordered_json workloads = nlohmann::ordered_json::array();
  for (const NamedPrompt& prompt : prompts) {
    DraftEvaluation evaluation(transformer, prompt.tokens, options, [&](int done, int total) {
      progress.Show(prompt.workload + ": full cache", done, total);
    });
    std::map<std::string, double> hooks;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      progress.Show(prompt.workload + ": " + cells[i].compressor, static_cast<int>(i),
                    static_cast<int>(cells.size()));
      DraftQuality& quality = cells[i].by_prompt.emplace_back(
          evaluation.Judge(compressors[i], cells[i].keep, arguments.draft_lengths));
      const auto [hook, is_new] = hooks.try_emplace(ScorerOf(cells[i].compressor));
      if (is_new) {
        hook->second = evaluation.HookSeconds(compressors[i]);
      }
      quality.hook_s = hook->second;
    }
    const Repetition repetition = evaluation.repetition();
    about.push_back({prompt.workload, std::to_string(prompt.tokens.size()),
                     std::to_string(evaluation.continuation().size()),
                     Fixed(100.0 * repetition.of_itself, 0) + "%",
                     Fixed(100.0 * repetition.of_prompt, 0) + "%"});
    nlohmann::ordered_json object;
    object["workload"] = prompt.workload;
    object["context"] = prompt.tokens.size();
    object["answer_tokens"] = evaluation.continuation().size();
    object["repeats_itself"] = repetition.of_itself;
    object["repeats_the_prompt"] = repetition.of_prompt;
    object["prefill_s"] = evaluation.prefill_s();
    object["answer"] = TextOf(tokenizer, evaluation.continuation());
    workloads.push_back(std::move(object));
  }
  progress.Clear();
  if (plot) {
    std::map<std::string, std::vector<PlotPoint>> lines;
    for (const Cell& cell : cells) {
      if (const auto length = MeanAcceptance(cell, 0)) {
        lines[cell.compressor].push_back(
            {.x = Mean(cell.by_prompt, [](const auto& each) { return each.bytes_ratio(); }),
             .y = *length});
      }
    }
    plot->Finish(AcceptanceSvg(lines, arguments.draft_lengths[0], model.params().name));
  }
  if (arguments.json) {
    nlohmann::ordered_json object;
    object["model"] = model.params().name;
    object["results"] = ToJson(cells, prompts);
    object["left_out"] = left_out;
    object["workloads"] = std::move(workloads);
    WriteOut(Dump(object, 2) + "\n");
  } else {
    WriteOut(FormatTable(about) + "\n" + Table(cells, arguments.draft_lengths) +
             Notes(compressors, left_out));
  }
}

}  // namespace

void AddAcceptance(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "acceptance", "How many drafted tokens are accepted, by compressor and keep ratio");
  const auto arguments = std::make_shared<AcceptanceArguments>();
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  CLI::Option* prompts = command->add_option("--prompts", arguments->prompts,
                                             "JSONL file as of generate, instead of the workloads");
  command
      ->add_option("--workloads", arguments->workloads,
                   "Some of the built-in ones, by commas (default: all; see vericache workloads)")
      ->delimiter(',')
      ->excludes(prompts);
  command->add_option("--context", arguments->context, "Tokens of a workload, at most")
      ->check(CLI::Range(64, 1 << 24))
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Of the workloads")->capture_default_str();
  command->add_option("--new-tokens", arguments->new_tokens, "Tokens of an answer, at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--compressors", arguments->compressors,
                      "Compressors, separated by spaces (default: all, and all combinations)");
  command->add_option("--keep", arguments->keeps, "Keep ratios of drop methods, by commas")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command
      ->add_option("--draft-lengths", arguments->draft_lengths,
                   "By commas; agreement, KL and the plot are of the first one")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  arguments->weights.AddTo(*command);
  command->add_option("-t,--threads", arguments->threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_option("--plot", arguments->plot,
                      "Draw accepted tokens over bytes into this file, an SVG or a PNG");
  command->footer(
      "Examples:\n"
      "  vericache acceptance -m model.gguf --workloads extract,quote --context 2000\n"
      "  vericache acceptance -m model.gguf --compressors snapkv snapkv:window=64+kivi4 --keep "
      "0.5,0.2 \\\n"
      "      --plot acceptance.svg");
  command->callback([arguments] { RunAcceptance(*arguments); });
}

}  // namespace vericache
