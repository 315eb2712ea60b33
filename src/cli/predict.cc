#include <array>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cli/output.h"

namespace vericache {
namespace {

constexpr int kLongestDraft = 128;

struct PredictArguments {
  ModelArguments model;
  std::string batch = "max";
  int new_tokens = 500;
};

std::optional<int> BatchOf(const std::string& text) {
  if (text == "max") {
    return std::nullopt;
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw UserError("--batch must be a number of at least 1, or max, not '" + text + "'");
  }
  return value;
}

std::string Milliseconds(double seconds) { return Fixed(1e3 * seconds, 1) + " ms"; }

std::string Binds(const IterationTime& time) {
  if (time.iter() == time.xfer) {
    return "link";
  }
  return time.iter() == time.gpu ? "fast memory" : "computation";
}

// What to do, in a sentence.
std::string Advice(const Throughput& full, const Throughput& vericache) {
  if (vericache.batch == 0.0) {
    return "Not even one request fits beside the weights: a smaller model, context or compression "
           "is needed.";
  }
  if (full.batch == 0.0) {
    return "Full caches do not fit here at all; VeriCache serves " +
           std::to_string(static_cast<int>(vericache.batch)) + " requests.";
  }
  const double speedup = vericache.tokens_per_s / full.tokens_per_s;
  const std::string times = Fixed(speedup, 2) + " times the tokens of full caches";
  if (speedup < 1.03) {
    return "Do not use VeriCache here: " + times + "; the " + Binds(vericache.time) + " binds.";
  }
  return "Use VeriCache here: " + times + ", bound by the " + Binds(vericache.time) + ".";
}

nlohmann::ordered_json ThroughputJson(const Throughput& throughput) {
  nlohmann::ordered_json object;
  object["batch"] = throughput.batch;
  object["batch_by_memory"] = throughput.limit.by_memory;
  object["batch_by_link"] = throughput.limit.by_link
                                ? nlohmann::ordered_json(*throughput.limit.by_link)
                                : nlohmann::ordered_json(nullptr);
  object["t_gpu_s"] = throughput.time.gpu;
  object["t_xfer_s"] = throughput.time.xfer;
  object["t_compute_s"] = throughput.time.compute;
  object["t_iter_s"] = throughput.time.iter();
  object["tokens_per_s"] = throughput.tokens_per_s;
  return object;
}

void RunPredict(const PredictArguments& arguments) {
  const DeviceProfile device = arguments.model.Device();
  const ModelShape shape = arguments.model.Shape();
  const AcceptanceModel acceptance = arguments.model.Acceptance();
  const std::optional<int> batch = BatchOf(arguments.batch);
  Workload workload{
      .full_cache = shape.kv_per_token() * static_cast<std::uint64_t>(arguments.model.context),
      .compression = arguments.model.compression};
  const int best = BestDraftLengthFor(device, shape, workload, acceptance, batch, kLongestDraft);
  workload.draft_length = arguments.model.DraftLength().value_or(best);

  const auto predict = [&](Policy policy) {
    return PredictThroughput(policy, device, shape, workload, acceptance, batch);
  };
  const Throughput full = predict(Policy::kFull);
  const Throughput lossy = predict(Policy::kLossy);
  const Throughput vericache = predict(Policy::kVeriCache);
  const double speedup = full.tokens_per_s > 0.0 ? vericache.tokens_per_s / full.tokens_per_s : 0.0;
  const double accepted = acceptance.Accepted(workload.draft_length);
  const double critical =
      vericache.batch > 0.0 ? CriticalRatio(device, shape, workload, vericache.batch) : 0.0;
  const RemoteRequest remote = PredictRemote(device, shape, workload, acceptance,
                                             std::max(1.0, vericache.batch), arguments.new_tokens);
  const std::string advice = Advice(full, vericache);

  if (arguments.model.json) {
    nlohmann::ordered_json object;
    object["device"] = device.name;
    object["model"] = shape.name;
    object["context"] = arguments.model.context;
    object["full_cache_bytes"] = workload.full_cache.count;
    object["compression"] = workload.compression;
    object["draft_length"] = workload.draft_length;
    object["best_draft_length"] = best;
    object["accepted_per_round"] = accepted;
    object["tokens_per_iteration"] =
        TokensPerIteration(Policy::kVeriCache, acceptance, workload.draft_length);
    object.update(ThroughputJson(vericache));
    object["speedup"] = speedup;
    object["critical_ratio"] = critical;
    object["full"] = ThroughputJson(full);
    object["lossy"] = ThroughputJson(lossy);
    object["remote"] = {{"startup_s", remote.startup},
                        {"cycles", remote.cycles},
                        {"t_decode_s", remote.decode},
                        {"reload_s", remote.reload},
                        {"t_forward_s", remote.forward},
                        {"t_request_s", remote.total},
                        {"t_request_full_s", remote.full},
                        {"speedup", remote.full / remote.total},
                        {"far_devices_per_near_device", remote.devices_ratio}};
    object["advice"] = advice;
    WriteOut(Dump(object, 2) + "\n");
    return;
  }

  if (vericache.batch == 0.0) {
    WriteOut(shape.name + " on " + device.name + ": " + advice + "\n");
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"policy", "batch", "T_gpu", "T_xfer", "compute", "T_iter", "bound by", "tokens/s"}};
  const std::array<std::pair<Policy, const Throughput*>, 3> all = {
      {{Policy::kFull, &full}, {Policy::kLossy, &lossy}, {Policy::kVeriCache, &vericache}}};
  for (const auto& [policy, each] : all) {
    rows.push_back({std::string(Name(policy)), Fixed(each->batch, 0), Milliseconds(each->time.gpu),
                    Milliseconds(each->time.xfer), Milliseconds(each->time.compute),
                    Milliseconds(each->time.iter()), Binds(each->time),
                    Fixed(each->tokens_per_s, 1)});
  }
  std::string text =
      shape.name + " on " + device.name + ": full cache " + HumanBytes(workload.full_cache) +
      " a request, c = " + Fixed(workload.compression, 3) +
      ", x = " + std::to_string(workload.draft_length) + " (best: " + std::to_string(best) + "), " +
      Fixed(accepted, 1) + " accepted a round\n\n" + FormatTable(rows);
  text += "\nlargest batch of vericache: " + std::to_string(vericache.limit.by_memory) +
          " by memory, " +
          (vericache.limit.by_link ? std::to_string(*vericache.limit.by_link) + " by the link"
                                   : std::string("no limit by the link")) +
          "\ncritical compression ratio: " + Fixed(critical, 3) +
          " (below it the link binds; where it is negative, never)\n" +
          "remote prefix: " + Fixed(remote.full, 1) + " s a request with full caches, " +
          Fixed(remote.total, 1) + " s with vericache; " + Fixed(remote.devices_ratio, 1) +
          " far devices for each near one\n\n" + advice + "\n";
  WriteOut(text);
}

}  // namespace

void AddPredict(CLI::App& app) {
  auto arguments = std::make_shared<PredictArguments>();
  CLI::App* command = app.add_subcommand(
      "predict", "Say what throughput a device would give, and whether to use VeriCache on it");
  arguments->model.AddTo(*command);
  command->add_option("--batch", arguments->batch, "Requests at once, or max: what fits")
      ->capture_default_str();
  command->add_option("--new-tokens", arguments->new_tokens, "Tokens of a remote request's answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  vericache predict --device rtx-pro-6000 --model-shape mistral-24b --context 50000\n"
      "  vericache doctor -m model.gguf --json > here.json\n"
      "  vericache predict --device here.json -m model.gguf --context 8000 --batch 4 "
      "--draft-length best");
  command->callback([=] { RunPredict(*arguments); });
}

}  // namespace vericache
