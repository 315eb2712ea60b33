#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/output.h"
#include "evaluation/llama_peer.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

constexpr const char* kPeer = "llama.cpp";

// Of an engine's time while all decode, as --json names them.
constexpr std::array<std::pair<const char*, double TimeSplit::*>, 6> kTimeParts = {{
    {"prefill_attention", &TimeSplit::prefill_attention},
    {"full_attention", &TimeSplit::full_attention},
    {"draft_attention", &TimeSplit::draft_attention},
    {"rest_of_graph", &TimeSplit::rest_of_graph},
    {"after", &TimeSplit::after},
    {"waiting", &TimeSplit::waiting},
}};

struct BenchArguments {
  std::string model;
  std::string text;
  int context = 8000;
  std::vector<int> batches = {1};
  std::vector<std::string> policies = {"full", "vericache"};
  int new_tokens = 64;
  std::string peer;
  EngineArguments engine;
  bool json = false;
};

struct BenchResult {
  Policy policy = Policy::kFull;
  int batch = 0;
  double prefill_tokens_per_s = 0.0;
  double decode_tokens_per_s = 0.0;  // of the whole batch, while all of it decodes
  double drafted_per_round = 0.0;
  double acceptance_length = 0.0;
  double seconds = 0.0;
  std::int64_t reloads = 0;
  std::int64_t late_reloads = 0;
  double link_busy = 0.0;
  double iteration_s = 0.0;
  TimeSplit split;  // as shares of `seconds`
  Bytes fast_memory_peak;
};

std::string Percent(double share) { return Fixed(100.0 * share, 0) + "%"; }

// `count` prompts of `context` tokens, cut out of the text at even distances.
std::vector<Prompt> CutPrompts(const std::vector<TokenId>& text, int count, int context) {
  if (text.size() < static_cast<std::size_t>(context)) {
    throw UserError("--text has " + std::to_string(text.size()) + " tokens, --context wants " +
                    std::to_string(context));
  }
  const std::size_t spare = text.size() - static_cast<std::size_t>(context);
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    const std::size_t at =
        count == 1 ? 0 : spare * static_cast<std::size_t>(i) / static_cast<std::size_t>(count - 1);
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    prompts.push_back({.id = std::to_string(i), .tokens = {begin, begin + context}});
  }
  return prompts;
}

// Counts the tokens of a batch from when all of it decodes.
BenchResult RunOne(const Model& model, const EngineOptions& options, std::vector<Prompt> prompts,
                   int new_tokens, ProgressBar& progress) {
  const auto batch = static_cast<int>(prompts.size());
  int decoding = 0;
  std::int64_t emitted = 0;
  std::int64_t prefilled = 0;
  bool ended = false;
  EngineEvents events;
  events.on_prefill = [&](int index, int done, int total) {
    progress.Show("prefill of " + std::to_string(index + 1) + " of " + std::to_string(batch), done,
                  total);
  };
  std::vector<bool> seen(prompts.size());
  events.on_tokens = [&](int index, std::span<const TokenId> tokens) {
    if (!seen[static_cast<std::size_t>(index)]) {
      seen[static_cast<std::size_t>(index)] = true;
      ++decoding;
    }
    emitted += static_cast<std::int64_t>(tokens.size());
  };
  std::optional<std::string> error;
  events.on_finish = [&](int, const Result& result) {
    ended = true;
    if (!result.error.empty()) {
      error = result.error;
    }
  };
  Engine engine(model, options, events);
  for (Prompt& prompt : prompts) {
    prefilled += static_cast<std::int64_t>(prompt.tokens.size());
    // Enough for those that begin first to be still there when the last one decodes.
    prompt.max_tokens = 40 * new_tokens + 1000;
    engine.Submit(std::move(prompt));
  }
  const Clock::time_point start = Clock::now();
  while (decoding < batch && engine.Step()) {
  }
  const Clock::time_point begin = Clock::now();
  const std::int64_t emitted_before = emitted;
  const EngineCounts before = engine.counts();
  const double busy_before = engine.link_busy_seconds();
  const TimeSplit split_before = engine.time_split();
  const std::int64_t wanted = std::int64_t{new_tokens} * batch;
  while (emitted - emitted_before < wanted && !ended && engine.Step()) {
    progress.Show(std::string(Name(options.policy)) + ", batch " + std::to_string(batch),
                  static_cast<int>(emitted - emitted_before), static_cast<int>(wanted));
  }
  progress.Clear();
  if (error) {
    throw UserError(*error);
  }
  if (ended) {
    throw UserError(
        "a request ended before the measurement did; a smaller --new-tokens, or a "
        "model with a longer context, is needed");
  }
  const double seconds = SecondsSince(begin);
  const EngineCounts after = engine.counts();
  BenchResult result{.policy = options.policy, .batch = batch, .seconds = seconds};
  result.prefill_tokens_per_s = static_cast<double>(prefilled) / Seconds(begin - start);
  result.decode_tokens_per_s = static_cast<double>(emitted - emitted_before) / seconds;
  const std::int64_t rounds = after.rounds - before.rounds;
  result.drafted_per_round =
      rounds > 0 ? static_cast<double>(after.drafted - before.drafted) / static_cast<double>(rounds)
                 : 0.0;
  result.acceptance_length = rounds > 0 ? static_cast<double>(after.accepted - before.accepted) /
                                              static_cast<double>(rounds)
                                        : 0.0;
  result.reloads = after.reloads - before.reloads;
  result.late_reloads = after.late_reloads - before.late_reloads;
  result.link_busy = (engine.link_busy_seconds() - busy_before) / seconds;
  result.iteration_s = seconds / static_cast<double>(std::max<std::int64_t>(
                                     1, after.iterations - before.iterations));
  const TimeSplit split = engine.time_split();
  for (const auto& [name, part] : kTimeParts) {
    result.split.*part = (split.*part - split_before.*part) / seconds;
  }
  result.fast_memory_peak = engine.fast_memory_peak();
  return result;
}

nlohmann::ordered_json ResultJson(const BenchResult& result, const BenchArguments& arguments) {
  nlohmann::ordered_json object;
  const bool full = result.policy == Policy::kFull;
  object["engine"] = "vericache";
  object["policy"] = Name(result.policy);
  object["compressor"] = full ? nlohmann::ordered_json(nullptr)
                              : nlohmann::ordered_json(arguments.engine.options.compressor);
  object["keep"] = full ? nlohmann::ordered_json(nullptr)
                        : nlohmann::ordered_json(arguments.engine.options.keep);
  object["draft_length"] = arguments.engine.draft_length;
  object["context"] = arguments.context;
  object["batch"] = result.batch;
  object["prefill_tokens_per_s"] = result.prefill_tokens_per_s;
  object["decode_tokens_per_s"] = result.decode_tokens_per_s;
  object["drafted_per_round"] = result.drafted_per_round;
  object["acceptance_length"] = result.acceptance_length;
  object["iteration_s"] = result.iteration_s;
  for (const auto& [name, part] : kTimeParts) {
    object["time_split"][name] = result.split.*part;
  }
  object["reloads"] = result.reloads;
  object["late_reloads"] = result.late_reloads;
  object["link_busy"] = result.link_busy;
  object["fast_memory_peak_bytes"] = result.fast_memory_peak.count;
  return object;
}

nlohmann::ordered_json ResultJson(const PeerSpeed& speed, const BenchArguments& arguments,
                                  int batch) {
  nlohmann::ordered_json object;
  object["engine"] = kPeer;
  for (const char* key : {"policy", "compressor", "keep", "draft_length"}) {
    object[key] = nullptr;
  }
  object["context"] = arguments.context;
  object["batch"] = batch;
  object["prefill_tokens_per_s"] = speed.prefill_tokens_per_s;
  object["decode_tokens_per_s"] = speed.decode_tokens_per_s;
  return object;
}

void RunBench(BenchArguments& arguments) {
  const std::vector<Policy> policies = PoliciesOf(arguments.policies);
  EngineOptions& options = arguments.engine.options;
  arguments.engine.Resolve();
  const Model model(arguments.model,
                    {.threads = options.threads,
                     .weights = arguments.engine.weights.For(arguments.model, options.threads)});
  const Tokenizer tokenizer(arguments.model);
  arguments.engine.ResolveRest(tokenizer);
  // Every batch begins with the same prompts, so that a kept prefix serves all runs.
  const std::vector<TokenId> text = tokenizer.Encode(ReadText(arguments.text), /*special=*/false);
  const int most = *std::max_element(arguments.batches.begin(), arguments.batches.end());
  const std::vector<Prompt> prompts = CutPrompts(text, most, arguments.context);

  ProgressBar progress;
  nlohmann::ordered_json all;
  std::vector<std::vector<std::string>> rows = {{"policy", "batch", "prefill/s", "decode/s",
                                                 "acceptance", "iteration", "attention full, draft",
                                                 "rest of graph", "after", "waiting",
                                                 "late reloads", "link busy", "fast memory"}};
  std::optional<LlamaPeer> peer;
  if (!arguments.peer.empty()) {
    peer.emplace(arguments.model, options.threads);
  }
  for (const int batch : arguments.batches) {
    const std::vector<Prompt> some(prompts.begin(), prompts.begin() + batch);
    if (peer) {
      const PeerSpeed speed = peer->Measure(
          some, arguments.new_tokens,
          [&](const std::string& what, int done, int total) { progress.Show(what, done, total); });
      progress.Clear();
      all["results"].push_back(ResultJson(speed, arguments, batch));
      rows.push_back({kPeer, std::to_string(batch), Fixed(speed.prefill_tokens_per_s, 1),
                      Fixed(speed.decode_tokens_per_s, 1), "", "", "", "", "", "", "", "", ""});
    }
    for (const Policy policy : policies) {
      options.policy = policy;
      options.batch = batch;
      const BenchResult result = RunOne(model, options, some, arguments.new_tokens, progress);
      all["results"].push_back(ResultJson(result, arguments));
      rows.push_back(
          {std::string(Name(policy)), std::to_string(batch), Fixed(result.prefill_tokens_per_s, 1),
           Fixed(result.decode_tokens_per_s, 1),
           Fixed(result.acceptance_length, 1) + " of " + Fixed(result.drafted_per_round, 1),
           Fixed(1e3 * result.iteration_s, 1) + " ms",
           Percent(result.split.full_attention) + ", " + Percent(result.split.draft_attention),
           Percent(result.split.rest_of_graph), Percent(result.split.after),
           Percent(result.split.waiting),
           std::to_string(result.late_reloads) + " of " + std::to_string(result.reloads),
           Percent(result.link_busy), HumanBytes(result.fast_memory_peak)});
    }
  }
  all["machine"] = {{"threads", options.threads},
                    {"attention_kernel", SelectKernel().name},
                    {"cores", std::thread::hardware_concurrency()}};
  WriteOut(arguments.json ? Dump(all, 2) + "\n" : FormatTable(rows));
}

}  // namespace

void AddBench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench->require_subcommand(1);
  AddBenchServe(*bench);
  CLI::App* command = bench->add_subcommand(
      "throughput", "Prefill and decode speed of batches of long prompts, by policy");
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  command->add_option("--text", arguments->text, "File that the prompts are cut out of")
      ->required();
  command->add_option("--context", arguments->context, "Tokens of each prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--batch", arguments->batches, "Requests at once, several by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--policies", arguments->policies, PolicyNames())
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--new-tokens", arguments->new_tokens,
                   "Tokens per request that are measured, while all decode")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--peer", arguments->peer,
                   "Measure this one too, on the same prompts: llama.cpp, with flash attention and "
                   "f16 caches")
      ->check(CLI::IsMember({kPeer}));
  arguments->engine.AddTo(*command);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  vericache bench throughput -m model.gguf --text book.txt --batch 1,4 --policies "
      "full,lossy,vericache\n"
      "  vericache bench throughput -m model.gguf --text book.txt --context 4000 --batch 8 \\\n"
      "      --policies vericache,lockstep --link-bandwidth 300MB/s --prefixes disk:/var/tmp/p\n"
      "  vericache bench throughput -m model.gguf --text book.txt --policies full --peer "
      "llama.cpp");
  command->callback([=] { RunBench(*arguments); });
}

}  // namespace vericache
