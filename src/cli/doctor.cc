#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "attention/kernel.h"
#include "base/bandwidth.h"
#include "base/memory.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cli/output.h"
#include "cli/weights_argument.h"
#include "evaluation/machine_costs.h"
#include "model/backend.h"
#include "model/model.h"

namespace vericache {
namespace {

struct DoctorArguments {
  std::string model;
  WeightsArgument weights;
  int threads = 1;
  bool json = false;
};

// Row counts of each class: "1; 2 and more".
std::string Classes(const TypeReport& report) {
  std::string text;
  for (std::size_t i = 0; i < report.class_starts.size(); ++i) {
    const int first = report.class_starts[i];
    text += i == 0 ? "" : "; ";
    if (i + 1 == report.class_starts.size()) {
      text += report.class_starts.size() == 1 ? "all equal" : std::to_string(first) + " and more";
      break;
    }
    const int last = report.class_starts[i + 1] - 1;
    text += first == last ? std::to_string(first)
                          : std::to_string(first) + " to " + std::to_string(last);
  }
  return text;
}

std::string Remedy(const TypeReport& report) {
  if (!report.exact) {
    return "NOT EXACT";
  }
  if (report.rule.group > 0) {
    return "groups of " + std::to_string(report.rule.group);
  }
  return report.rule.pad_to == 1 ? "none needed"
                                 : "pad to " + std::to_string(report.rule.pad_to) + " rows";
}

// The rows of a verify, or of an iteration of many drafts: what `predict` asks for. More of them
// may be faster by far (AMX).
constexpr int kFlopsRows = 26;

// Of the type that most weights have.
double ProductFlops(const std::vector<TypeReport>& reports) {
  const auto most =
      std::max_element(reports.begin(), reports.end(),
                       [](const TypeReport& a, const TypeReport& b) { return a.bytes < b.bytes; });
  return std::ranges::find(most->costs, kFlopsRows, &TypeReport::Cost::rows)->exact_flops_per_s;
}

nlohmann::ordered_json TypeJson(const TypeReport& report) {
  nlohmann::ordered_json object;
  object["type"] = ggml_type_name(report.kind.type);
  object["packed"] = report.kind.packed;
  object["matrices"] = report.matrices;
  object["bytes"] = report.bytes.count;
  object["class_starts"] = report.class_starts;
  object["exact"] = report.exact;
  object["pad_to"] = report.rule.pad_to;
  object["group"] = report.rule.group;
  object["costs"] = nlohmann::ordered_json::array();
  for (const TypeReport::Cost& cost : report.costs) {
    object["costs"].push_back({{"rows", cost.rows},
                               {"plain_us_per_row", cost.plain_us},
                               {"exact_us_per_row", cost.exact_us}});
  }
  return object;
}

void RunDoctor(const DoctorArguments& arguments) {
  const Model model(arguments.model,
                    {.threads = arguments.threads,
                     .weights = arguments.weights.For(arguments.model, arguments.threads),
                     .measure_costs = true});
  const ModelParams& params = model.params();
  const Bytes cache_per_token =
      Bytes{PlainCacheBytes(params.geometry(), {}, kPageSlots).count / kPageSlots};
  const double bandwidth = MeasureReadBandwidth(arguments.threads);
  Transformer transformer(model, arguments.threads);
  const MachineCosts costs = MeasureCosts(transformer);

  if (arguments.json) {
    nlohmann::ordered_json object;
    object["model"] = params.name;
    object["architecture"] = params.architecture;
    object["weight_bytes"] = model.weights().bytes().count;
    object["context"] = params.context;
    object["cache_bytes_per_token"] = cache_per_token.count;
    object["attention_kernel"] = SelectKernel().name;
    object["ggml_instruction_sets"] = GgmlInstructionSets();
    object["threads"] = arguments.threads;
    object["read_bandwidth_bytes_per_s"] = bandwidth;
    object["memory_bytes"] = AvailableMemory().count;
    object["product_flops_per_s"] = ProductFlops(model.reports());
    // For predict, beside bandwidth and memory.
    object["flops"] = 2.0 * ShapeOfFile(arguments.model).parameters / costs.row_s;
    object["iteration_s"] = costs.iteration_s;
    object["draft_cache_bandwidth"] = costs.draft_cache_bytes_per_s;
    object["verify_cache_bandwidth"] = costs.verify_cache_bytes_per_s;
    object["weight_types"] = nlohmann::ordered_json::array();
    for (const TypeReport& report : model.reports()) {
      object["weight_types"].push_back(TypeJson(report));
    }
    WriteOut(Dump(object, 2) + "\n");
    return;
  }

  std::string kernels;
  for (const AttentionKernel& kernel : AvailableKernels()) {
    kernels += (kernels.empty() ? "" : ", ") + kernel.name;
  }
  std::printf(
      "%s",
      FormatTable(
          {{"model", params.name + " (" + params.architecture + ", " +
                         std::to_string(params.layers) + " layers, " +
                         std::to_string(params.heads) + " heads, " +
                         std::to_string(params.kv_heads) + " KV heads of " +
                         std::to_string(params.head_dim) + ")"},
           {"weights", HumanBytes(model.weights().bytes())},
           {"context", std::to_string(params.context) + " tokens"},
           {"full cache",
            HumanBytes(cache_per_token) + " a token (f16), " +
                HumanBytes(cache_per_token * static_cast<std::uint64_t>(params.context)) +
                " at full context"},
           {"attention kernel", SelectKernel().name + " (this machine runs: " + kernels + ")"},
           {"ggml instruction sets", GgmlInstructionSets()},
           {"read bandwidth", Fixed(bandwidth / 1e9, 1) + " GB/s with " +
                                  std::to_string(arguments.threads) + " threads"},
           {"iterations", Fixed(1e3 * costs.iteration_s, 1) + " ms, and " +
                              Fixed(1e3 * costs.row_s, 2) + " ms for each row"},
           {"attention over f16", Fixed(costs.draft_cache_bytes_per_s / 1e9, 1) +
                                      " GB/s by one row, " +
                                      Fixed(costs.verify_cache_bytes_per_s / 1e9, 1) + " GB/s by " +
                                      std::to_string(MachineCosts::kRows)},
           {"weight products", Fixed(ProductFlops(model.reports()) / 1e9, 1) + " GFLOP/s at " +
                                   std::to_string(kFlopsRows) + " rows"}})
          .c_str());

  std::printf("\nExactness of weight products (a row's bits must not depend on other rows):\n");
  std::vector<std::vector<std::string>> rows = {{"type", "matrices", "bytes",
                                                 "row counts that agree", "remedy",
                                                 "its cost at 1, 4, 26, 512 rows"}};
  for (const TypeReport& report : model.reports()) {
    std::string cost;
    for (const TypeReport::Cost& each : report.costs) {
      cost += (cost.empty() ? "" : "  ") + Fixed(each.exact_us / each.plain_us, 2) + "x";
    }
    rows.push_back(
        {std::string(ggml_type_name(report.kind.type)) + (report.kind.packed ? ", packed" : ""),
         std::to_string(report.matrices), HumanBytes(report.bytes), Classes(report), Remedy(report),
         cost});
  }
  std::printf("%s", FormatTable(rows).c_str());
}

}  // namespace

void AddDoctor(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  arguments->threads = HardwareThreads();
  CLI::App* command = app.add_subcommand(
      "doctor", "Show what this machine does with a model, and whether its output is exact");
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  arguments->weights.AddTo(*command);
  command->add_option("-t,--threads", arguments->threads, "Threads")
      ->check(CLI::Range(1, GGML_MAX_N_THREADS))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer("Example:\n  vericache doctor -m model.gguf");
  command->callback([=] { RunDoctor(*arguments); });
}

}  // namespace vericache
