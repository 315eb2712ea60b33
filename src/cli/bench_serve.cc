// `bench serve`: a load of requests against a server that speaks OpenAI's API, ours or another.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/load_client.h"
#include "cli/load_plot.h"
#include "cli/output.h"
#include "cli/picture.h"
#include "prompts/prompt_file.h"

namespace vericache {
namespace {

struct ServeBenchArguments {
  std::string url = "http://127.0.0.1:8080";
  std::string key;
  std::string model_name;
  std::string text;
  std::string trace;
  int prompt_bytes = 2000;
  int requests = 64;
  double rate = 0.0;
  int connections = 256;
  int max_tokens = 64;
  unsigned seed = 1;
  bool json = false;
  std::string plot;
};

// Parts of the text, each from another place.
class PromptCutter {
 public:
  explicit PromptCutter(std::string text) : text_(std::move(text)) {
    if (text_.empty()) {
      throw UserError("the text for the prompts is empty");
    }
  }
  std::string Cut(std::size_t bytes) {
    std::string prompt;
    // Where a character begins.
    while (from_ < text_.size() && (static_cast<unsigned char>(text_[from_]) & 0xC0U) == 0x80U) {
      ++from_;
    }
    while (prompt.size() < bytes) {
      from_ = from_ >= text_.size() ? 0 : from_;
      const std::size_t size = std::min(bytes - prompt.size(), text_.size() - from_);
      prompt += text_.substr(from_, size);
      from_ += size;
    }
    while (!prompt.empty() && (static_cast<unsigned char>(prompt.back()) & 0xC0U) == 0x80U) {
      prompt.pop_back();
    }
    if (!prompt.empty() && static_cast<unsigned char>(prompt.back()) >= 0xC0U) {
      prompt.pop_back();
    }
    return prompt;
  }

 private:
  std::string text_;
  std::size_t from_ = 0;
};

// {"at": seconds, "prompt_bytes": n, "max_tokens": n} a line.
std::vector<LoadRequest> ReadTrace(const ServeBenchArguments& arguments, PromptCutter& cutter) {
  std::vector<LoadRequest> requests;
  std::istringstream lines(ReadText(arguments.trace));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto count = [&object](const char* name, int otherwise) {
      const auto at = object.find(name);
      return at == object.end()         ? otherwise
             : !at->is_number_integer() ? -1
             : at->get<std::int64_t>() > 0
                 ? static_cast<int>(std::min<std::int64_t>(at->get<std::int64_t>(), 100'000'000))
                 : -1;
    };
    const bool timed = object.is_object() && object.contains("at") && object["at"].is_number();
    const int bytes = timed ? count("prompt_bytes", arguments.prompt_bytes) : -1;
    const int tokens = timed ? count("max_tokens", arguments.max_tokens) : -1;
    if (bytes < 1 || tokens < 1) {
      throw UserError(arguments.trace + ":" + std::to_string(number) +
                      R"(: not {"at": SECONDS, "prompt_bytes": N, "max_tokens": N})");
    }
    requests.push_back({.at = object["at"].get<double>(),
                        .prompt = cutter.Cut(static_cast<std::size_t>(bytes)),
                        .max_tokens = tokens});
  }
  if (requests.empty()) {
    throw UserError(arguments.trace + ": no requests in it");
  }
  return requests;
}

// As a Poisson process, or all at once.
std::vector<LoadRequest> MakeRequests(const ServeBenchArguments& arguments) {
  PromptCutter cutter(ReadText(arguments.text));
  if (!arguments.trace.empty()) {
    return ReadTrace(arguments, cutter);
  }
  std::vector<LoadRequest> requests;
  std::mt19937 random(arguments.seed);
  double at = 0.0;
  for (int i = 0; i < arguments.requests; ++i) {
    requests.push_back({.at = at,
                        .prompt = cutter.Cut(static_cast<std::size_t>(arguments.prompt_bytes)),
                        .max_tokens = arguments.max_tokens});
    if (arguments.rate > 0.0) {
      at += std::exponential_distribution<double>(arguments.rate)(random);
    }
  }
  return requests;
}

// Sends each at its time, on a connection of its own.
std::vector<LoadAnswer> Run(const ServeBenchArguments& arguments,
                            const std::vector<LoadRequest>& requests) {
  std::vector<LoadAnswer> answers(requests.size());
  std::counting_semaphore<> connections(arguments.connections);
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  threads.reserve(requests.size());
  const Clock::time_point start = Clock::now();
  ProgressBar progress;
  const auto total = static_cast<int>(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto due = start + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(requests[i].at));
    for (; Clock::now() < due; progress.Show("requests", done, total)) {
      std::this_thread::sleep_until(std::min(due, Clock::now() + std::chrono::milliseconds(100)));
    }
    connections.acquire();
    threads.emplace_back([&, i] {
      answers[i] = AskServer(arguments.url, arguments.key, arguments.model_name, requests[i]);
      ++done;
      connections.release();
    });
  }
  for (; done < total; progress.Show("requests", done, total)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  progress.Clear();
  return answers;
}

// The value that this share of them is at most; 0 of none.
double Quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) {
    return 0.0;
  }
  const double last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(share * last))];
}

void RunServeBench(const ServeBenchArguments& arguments) {
  const std::vector<LoadRequest> requests = MakeRequests(arguments);
  std::optional<PictureFile> plot;
  if (!arguments.plot.empty()) {
    plot.emplace(arguments.plot);
  }
  const Clock::time_point start = Clock::now();
  const std::vector<LoadAnswer> answers = Run(arguments, requests);
  const double seconds = SecondsSince(start);

  std::vector<std::pair<std::string, std::vector<double>>> times = {
      {"time to first token", {}}, {"between tokens", {}}, {"end to end", {}}};
  std::map<std::string, int> errors;
  std::int64_t tokens = 0;
  int complete = 0;
  for (const LoadAnswer& answer : answers) {
    if (!answer.error.empty()) {
      ++errors[answer.error];
      continue;
    }
    ++complete;
    tokens += answer.tokens;
    times[0].second.push_back(answer.first_token);
    times[1].second.insert(times[1].second.end(), answer.gaps.begin(), answer.gaps.end());
    times[2].second.push_back(answer.whole);
  }
  std::vector<std::vector<std::string>> rows = {{"seconds", "p50", "p90", "p99", "most"}};
  nlohmann::ordered_json all = {{"url", arguments.url},
                                {"requests", answers.size()},
                                {"complete", complete},
                                {"seconds", seconds},
                                {"requests_per_s", complete / seconds},
                                {"tokens_per_s", static_cast<double>(tokens) / seconds}};
  for (auto& [name, values] : times) {
    std::sort(values.begin(), values.end());
    std::vector<std::string> row = {name};
    for (const auto& [label, share] :
         {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"most", 1.0}}) {
      row.push_back(Fixed(Quantile(values, share), 4));
      all[name][label] = Quantile(values, share);
    }
    rows.push_back(std::move(row));
  }
  all["errors"] = errors;
  if (plot) {
    plot->Finish(LoadSvg(times, arguments.url + ", " + std::to_string(complete) + " answers, " +
                                    Fixed(static_cast<double>(tokens) / seconds, 1) + " tokens/s"));
  }
  if (arguments.json) {
    WriteOut(Dump(all, 2) + "\n");
  } else {
    std::string text = FormatTable(rows) + "\n" + std::to_string(complete) + " of " +
                       std::to_string(answers.size()) + " answers in " + Fixed(seconds, 1) +
                       " s: " + Fixed(complete / seconds, 2) + " a second, " +
                       Fixed(static_cast<double>(tokens) / seconds, 1) + " tokens/s\n";
    for (const auto& [error, count] : errors) {
      text += std::to_string(count) + " x " + error + "\n";
    }
    WriteOut(text);
  }
  if (complete == 0) {
    throw RequestFailed();
  }
}

}  // namespace

void AddBenchServe(CLI::App& bench) {
  auto arguments = std::make_shared<ServeBenchArguments>();
  CLI::App* command = bench.add_subcommand(
      "serve", "Latencies of a server that speaks OpenAI's API, ours or another, under load");
  command->add_option("--url", arguments->url, "Of the server")->capture_default_str();
  command->add_option("--api-key", arguments->key, "Key that it wants");
  command->add_option("--model-name", arguments->model_name, "What it calls its model");
  command->add_option("--text", arguments->text, "File that the prompts are cut out of")
      ->required();
  command->add_option("--prompt-bytes", arguments->prompt_bytes, "Bytes of a prompt")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command->add_option("--max-tokens", arguments->max_tokens, "Tokens of an answer")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  CLI::Option* requests = command->add_option("--requests", arguments->requests, "How many")
                              ->check(CLI::Range(1, 100'000))
                              ->capture_default_str();
  CLI::Option* rate = command
                          ->add_option("--rate", arguments->rate,
                                       "Requests a second, as a Poisson process; 0: all at once")
                          ->check(CLI::NonNegativeNumber)
                          ->capture_default_str();
  command
      ->add_option("--trace", arguments->trace,
                   "File with an object a line instead: at (seconds), prompt_bytes, max_tokens")
      ->excludes(requests)
      ->excludes(rate);
  command->add_option("--connections", arguments->connections, "At once, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Of the process")->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_option("--plot", arguments->plot,
                      "Draw the share of answers by time into this SVG or PNG");
  command->footer(
      "Examples:\n"
      "  vericache bench serve --text README.md --requests 100 --rate 2 --plot load.svg\n"
      "  vericache bench serve --url http://127.0.0.1:8081 --text README.md --trace trace.jsonl");
  command->callback([arguments] { RunServeBench(*arguments); });
}

}  // namespace vericache
