#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <random>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/output.h"
#include "cli/whole_file.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

std::atomic<bool> interrupted{false};

struct GenerateArguments {
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string prompts;
  bool chat = false;
  SamplingOptions sampling;
  int max_tokens = 256;
  std::string policy = "vericache";
  bool json = false;
  std::string stats_json;
  int batch = 1;
  EngineArguments engine;
};

std::vector<PromptText> GatherPrompts(const GenerateArguments& arguments, bool has_prompt) {
  if (!arguments.prompts.empty()) {
    return ReadPrompts(arguments.prompts);
  }
  PromptText prompt{.id = "0", .messages = {}, .text = {}, .max_tokens = std::nullopt};
  prompt.text = has_prompt ? arguments.prompt : ReadText(arguments.prompt_file);
  return {prompt};
}

// `index`: of all prompts, each of which has a seed of its own.
Prompt Encode(const PromptText& given, std::size_t index, const GenerateArguments& arguments,
              const Tokenizer& tokenizer) {
  Prompt prompt{.id = given.id,
                .tokens = EncodePrompt(given, arguments.chat, tokenizer),
                .max_tokens = given.max_tokens.value_or(arguments.max_tokens),
                .sampling = arguments.sampling};
  prompt.sampling.seed += index;
  return prompt;
}

// Writes texts to standard output as they are verified: one request at a time, in their order, the
// others wait their turn.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer& tokenizer, std::size_t requests)
      : tokenizer_(tokenizer), requests_(requests) {}

  void SetHeader(std::size_t index, std::string header) {
    requests_[index].pending = std::move(header);
  }

  void Add(std::size_t index, std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) {
      if (!tokenizer_.IsEnd(token)) {
        requests_[index].pending += requests_[index].stream.Add(tokenizer_.Piece(token));
      }
    }
    Flush();
  }

  void Finish(std::size_t index) {
    requests_[index].pending += requests_[index].stream.Finish() + "\n";
    requests_[index].finished = true;
    Flush();
  }

 private:
  struct State {
    TextStream stream;
    std::string pending;
    bool finished = false;
  };

  void Flush() {
    while (current_ < requests_.size()) {
      State& state = requests_[current_];
      WriteOut(state.pending);
      state.pending.clear();
      if (!state.finished) {
        break;
      }
      ++current_;
    }
  }

  const Tokenizer& tokenizer_;
  std::vector<State> requests_;
  std::size_t current_ = 0;
};

std::string Summary(const Result& result, const EngineOptions& options) {
  std::string text = std::to_string(result.prompt_tokens) + " prompt tokens at " +
                     Fixed(result.prefill_tokens_per_s(), 1) + "/s, " +
                     std::to_string(result.tokens.size()) + " tokens at " +
                     Fixed(result.decode_tokens_per_s(), 1) + "/s";
  if (result.rounds > 0) {
    text += ", acceptance length " + Fixed(result.acceptance_length(), 1) + " of " +
            Fixed(static_cast<double>(result.drafted_tokens) / result.rounds, 1) + " drafted";
  }
  if (options.policy == Policy::kFull) {
    return text + ", full cache " + HumanBytes(result.full_cache);
  }
  return text + ", compressed cache " + HumanBytes(result.compressed_cache) +
         " (full: " + HumanBytes(result.full_cache) + ")";
}

void RunGenerate(GenerateArguments arguments, bool has_prompt) {
  EngineOptions& options = arguments.engine.options;
  options.policy = PolicyOf(arguments.policy);
  options.batch = arguments.batch;
  arguments.engine.Resolve();
  const std::vector<PromptText> given = GatherPrompts(arguments, has_prompt);
  std::optional<WholeFile> stats;
  if (!arguments.stats_json.empty()) {
    stats.emplace(arguments.stats_json);
  }

  std::signal(SIGINT, [](int) {
    interrupted.store(true);
    std::signal(SIGINT, SIG_DFL);  // a second one stops at once
  });
  const Model model(arguments.model,
                    {.threads = options.threads,
                     .weights = arguments.engine.weights.For(arguments.model, options.threads)});
  const Tokenizer tokenizer(arguments.model);
  arguments.engine.ResolveRest(tokenizer);
  options.is_end = [&tokenizer](TokenId token) { return tokenizer.IsEnd(token); };
  for (const TypeReport& report : model.reports()) {
    if (!report.exact) {
      std::fprintf(stderr,
                   "vericache: warning: %s products are not repeatable on this machine, so equal "
                   "output is not assured\n",
                   ggml_type_name(report.kind.type));
    }
  }

  ProgressBar progress;
  TextPrinter printer(tokenizer, given.size());
  std::vector<nlohmann::ordered_json> objects(given.size());
  std::vector<bool> done(given.size());
  std::size_t printed = 0;
  bool failed = false;
  Engine* running = nullptr;
  EngineEvents events;
  events.on_prefill = [&](int index, int filled, int total) {
    const std::string which =
        given.size() == 1 ? "prefill" : "prefill of " + given[static_cast<std::size_t>(index)].id;
    progress.Show(which, filled, total);
    if (filled == total) {
      progress.Clear();
    }
  };
  events.on_tokens = [&](int index, std::span<const TokenId> tokens) {
    if (!arguments.json) {
      progress.Clear();
      printer.Add(static_cast<std::size_t>(index), tokens);
    }
  };
  events.on_finish = [&](int index, const Result& result) {
    const auto i = static_cast<std::size_t>(index);
    progress.Clear();
    objects[i] =
        ToJson(result, TextOf(tokenizer, result.tokens), options, running->fast_memory_peak());
    done[i] = true;
    failed = failed || !result.error.empty();
    if (!arguments.json) {
      printer.Finish(i);
      if (!result.error.empty()) {
        std::fprintf(stderr, "vericache: prompt %s: %s\n", given[i].id.c_str(),
                     result.error.c_str());
      }
      std::fprintf(stderr, "[%s%s]\n", given.size() == 1 ? "" : (given[i].id + ": ").c_str(),
                   Summary(result, options).c_str());
      return;
    }
    for (; printed < done.size() && done[printed]; ++printed) {
      WriteOut(Dump(objects[printed]) + "\n");
    }
  };

  Engine engine(model, options, events);
  running = &engine;
  engine.SetStop([] { return interrupted.load(std::memory_order_relaxed); });
  // All are looked at before the first is computed, so that a bad one leaves nothing half-written.
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given.size() > 1) {
      printer.SetHeader(i, "=== " + given[i].id + "\n");
    }
    try {
      engine.Submit(Encode(given[i], i, arguments, tokenizer));
    } catch (const UserError& error) {
      throw UserError(given.size() == 1 ? error.what()
                                        : "prompt " + given[i].id + ": " + error.what());
    }
  }
  while (engine.Step()) {
  }
  if (stats) {
    std::string text;
    for (const auto& object : objects) {
      text += Dump(object) + "\n";
    }
    stats->Finish(text);
  }
  if (failed) {
    throw RequestFailed();
  }
}

void AddSampling(CLI::App& command, GenerateArguments& arguments) {
  SamplingOptions& sampling = arguments.sampling;
  command
      .add_option(
          "--temperature", sampling.temperature,
          "Of sampling; 0: the most likely token. Whatever it is, output is that of the full "
          "cache with the same seed, or without --seed has its distribution")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Sample from so many tokens; 0: from all")
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "Sample from the fewest tokens of this probability")
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "Sample from tokens of at least this share of the largest probability")
      ->capture_default_str();
  command
      .add_option("--presence-penalty", sampling.presence_penalty,
                  "Off the logit of tokens that were emitted")
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", sampling.frequency_penalty,
                  "Off the logit of a token for each time that it was emitted")
      ->capture_default_str();
  command.add_option(
      "--seed", sampling.seed,
      "Of sampling, plus the number of the prompt: the same output each time. Without "
      "it drafts are verified by rejection sampling, which accepts more of them");
}

}  // namespace

void AddGenerate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Answer one or several prompts");
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  CLI::Option* prompt = command->add_option("-p,--prompt", arguments->prompt, "Prompt");
  CLI::Option* prompt_file = command->add_option("-f,--prompt-file", arguments->prompt_file,
                                                 "File with the prompt; -: stdin");
  CLI::Option* prompts = command->add_option(
      "--prompts", arguments->prompts,
      "File with a JSON object a line: prompt or messages, optional id, max_tokens");
  prompt->excludes(prompt_file)->excludes(prompts);
  prompt_file->excludes(prompts);
  command->add_flag("--chat", arguments->chat,
                    "Put the prompt into the model's chat template, as libllama knows it");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "Tokens to emit, at most")
      ->capture_default_str();
  command
      ->add_option(
          "--policy", arguments->policy,
          "full: decode on the full cache; lossy: drafts are the output; vericache: drafts "
          "are verified; lockstep: all at the same time; auto: drafts only where it pays")
      ->capture_default_str();
  AddSampling(*command, *arguments);
  command->add_option("--batch", arguments->batch, "Prompts in flight at once")
      ->capture_default_str();
  arguments->engine.AddTo(*command);
  command->add_flag("--json", arguments->json, "Print a JSON object per prompt instead of text");
  command->add_option("--stats-json", arguments->stats_json,
                      "Also write those JSON objects to a file, at the end");
  command->footer(
      "Examples:\n"
      "  vericache generate -m model.gguf -p 'Once upon a time' -n 64\n"
      "  vericache generate -m model.gguf --chat -f question.txt --compressor kivi4\n"
      "  vericache generate -m model.gguf -p 'Once upon a time' --temperature 0.8 --top-p 0.95 "
      "--seed 1\n"
      "  cat long.txt | vericache generate -m model.gguf -f - --compressor snapkv+kivi4 --keep "
      "0.3\n"
      "  vericache generate -m model.gguf --prompts prompts.jsonl --batch 4 --json > out.jsonl\n"
      "  vericache generate -m model.gguf --prompts prompts.jsonl --batch 8 --fast-memory 512MiB "
      "\\\n"
      "      --full-store disk:/var/tmp/vericache");
  command->callback([=] {
    if (prompt->empty() && prompt_file->empty() && prompts->empty()) {
      throw UserError("no prompt: give --prompt, --prompt-file or --prompts");
    }
    ValidateSampling(arguments->sampling);
    if (command->count("--seed") == 0) {
      arguments->sampling.seed = std::random_device()();
      arguments->sampling.rejection = true;
    }
    RunGenerate(*arguments, !prompt->empty());
  });
}

}  // namespace vericache
