#include <deque>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/model_arguments.h"
#include "cli/output.h"
#include "cli/picture.h"
#include "cli/timeline.h"
#include "perfmodel/simulator.h"

namespace vericache {
namespace {

constexpr int kTimelineRequests = 16;

struct SimulateArguments {
  ModelArguments model;
  std::vector<std::string> policies = {"vericache"};
  SimulationOptions options;
  bool computed = false;
  std::string timeline;
  double timeline_end = 0.0;
};

nlohmann::ordered_json ResultJson(Policy policy, const SimulationResult& result) {
  nlohmann::ordered_json object;
  object["policy"] = Name(policy);
  object["seconds"] = result.seconds;
  object["tokens"] = result.tokens;
  object["tokens_per_s"] = result.tokens_per_s();
  object["iterations"] = result.iterations;
  object["most_active"] = result.most_active;
  object["rounds"] = result.counts.rounds;
  object["acceptance_length"] =
      result.counts.rounds > 0
          ? static_cast<double>(result.accepted) / static_cast<double>(result.counts.rounds)
          : 0.0;
  object["reloads"] = result.counts.reloads;
  object["late_reloads"] = result.counts.late_reloads;
  object["link_busy"] = result.link_busy;
  object["link_bytes"] = result.link_bytes.count;
  object["memory_peak_bytes"] = result.memory_peak.count;
  object["memory_room_bytes"] = result.memory_room.count;
  for (const auto& [key, share] :
       {std::pair{"p50", 0.5}, std::pair{"p90", 0.9}, std::pair{"p99", 0.99}}) {
    object["latency_s"][key] = Percentile(result.latencies, share);
    object["first_token_s"][key] = Percentile(result.first_token, share);
  }
  for (const OccupancySample& sample : result.occupancy) {
    object["occupancy"].push_back({{"time_s", sample.time},
                                   {"memory_bytes", sample.in_use.count},
                                   {"link_busy", sample.link_busy},
                                   {"active", sample.active}});
  }
  return object;
}

// Ten lines over the run.
std::string OccupancyTable(const SimulationResult& result) {
  std::vector<std::vector<std::string>> rows = {{"time", "active", "fast memory", "link busy"}};
  const std::size_t step = std::max<std::size_t>(1, (result.occupancy.size() + 9) / 10);
  for (std::size_t i = 0; i < result.occupancy.size(); i += step) {
    const std::size_t end = std::min(i + step, result.occupancy.size());
    double busy = 0.0;
    for (std::size_t j = i; j < end; ++j) {
      busy += result.occupancy[j].link_busy / static_cast<double>(end - i);
    }
    const OccupancySample& sample = result.occupancy[i];
    rows.push_back({Fixed(sample.time, 2) + " s", std::to_string(sample.active),
                    HumanBytes(sample.in_use), Fixed(100.0 * busy, 0) + "%"});
  }
  return FormatTable(rows);
}

void RunSimulate(const SimulateArguments& arguments) {
  SimulationOptions options = arguments.options;
  options.device = arguments.model.Device();
  options.model = arguments.model.Shape();
  options.acceptance = arguments.model.Acceptance();
  options.compression = arguments.model.compression;
  options.context = arguments.model.context;
  options.stored_contexts = !arguments.computed;
  options.adaptive = !arguments.model.DraftLength().has_value();
  options.draft_length = arguments.model.DraftLength().value_or(64);
  const std::vector<Policy> policies = PoliciesOf(arguments.policies);

  nlohmann::ordered_json all;
  std::vector<std::vector<std::string>> rows = {{"policy", "tokens/s", "at once", "latency p50",
                                                 "p90", "p99", "first token p50", "link busy",
                                                 "late reloads", "fast memory"}};
  std::string details;
  const bool draw = !arguments.timeline.empty();
  std::deque<PictureFile> pictures;  // one for each
  for (const Policy policy : policies) {
    std::filesystem::path path = arguments.timeline;
    if (policies.size() > 1) {
      path.replace_filename(std::string(Name(policy)) + "-" + path.filename().string());
    }
    if (draw) {
      pictures.emplace_back(path.string());
    }
  }
  for (const Policy policy : policies) {
    options.policy = policy;
    std::vector<TimelineSpan> spans;
    const double keep = arguments.timeline_end > 0.0 ? arguments.timeline_end : 1e9;
    const SimulationResult result = Simulate(options, [&](const TimelineSpan& span) {
      if (draw && span.begin < keep && spans.size() < 400'000) {
        spans.push_back(span);
      }
    });
    if (draw) {
      pictures.front().Finish(TimelineSvg(
          spans, std::min(kTimelineRequests, options.requests), std::min(keep, result.seconds),
          std::string(Name(policy)) + ": " + options.model.name + " on " + options.device.name +
              ", " + std::to_string(options.requests) + " requests"));
      pictures.pop_front();
    }
    all["results"].push_back(ResultJson(policy, result));
    rows.push_back({std::string(Name(policy)), Fixed(result.tokens_per_s(), 1),
                    std::to_string(result.most_active),
                    Fixed(Percentile(result.latencies, 0.5), 2) + " s",
                    Fixed(Percentile(result.latencies, 0.9), 2) + " s",
                    Fixed(Percentile(result.latencies, 0.99), 2) + " s",
                    Fixed(Percentile(result.first_token, 0.5), 2) + " s",
                    Fixed(100.0 * result.link_busy, 0) + "%",
                    std::to_string(result.counts.late_reloads) + " of " +
                        std::to_string(result.counts.reloads),
                    HumanBytes(result.memory_peak) + " of " + HumanBytes(result.memory_room)});
    details += "\n" + std::string(Name(policy)) + " over time\n" + OccupancyTable(result);
  }
  WriteOut(arguments.model.json ? Dump(all, 2) + "\n" : FormatTable(rows) + details);
}

}  // namespace

void AddSimulate(CLI::App& app) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Play requests through the scheduler on a virtual clock and a device's profile");
  arguments->model.AddTo(*command);
  command
      ->add_option("--policy", arguments->policies, "One or several, by commas: " + PolicyNames())
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--requests", arguments->options.requests, "Requests to play")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--rate", arguments->options.rate,
                   "Arrivals a second, at random; 0: all are there at the begin")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--new-tokens", arguments->options.new_tokens, "Tokens to emit for each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--spread", arguments->options.spread, "Contexts and answers vary by this share")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  command->add_option("--batch", arguments->options.batch, "Requests in flight, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--compute-contexts", arguments->computed,
                    "Prefill the contexts; otherwise their caches are in the store already");
  command->add_option("--seed", arguments->options.seed, "Of arrivals, lengths and acceptance")
      ->capture_default_str();
  command->add_option(
      "--timeline", arguments->timeline,
      "Draw drafts, reloads and verifies of the first requests into this SVG or PNG; for "
      "several policies into POLICY-FILE each");
  command->add_option("--timeline-end", arguments->timeline_end, "Seconds that it shows");
  command->footer(
      "Examples:\n"
      "  vericache simulate --device rtx-pro-6000 --model-shape mistral-24b --context 25000 \\\n"
      "      --requests 10 --policy vericache,lockstep --timeline timeline.svg --timeline-end 3\n"
      "  vericache simulate --device h100-nvl --model-shape qwen-32b --requests 1000 --rate 0.5");
  command->callback([=] { RunSimulate(*arguments); });
}

}  // namespace vericache
