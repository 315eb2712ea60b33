#include "prompts/workloads.h"

#include <memory>

#include "cli/commands.h"
#include "cli/output.h"

namespace vericache {
namespace {

struct ShowArguments {
  std::string name;
  std::string model;
  int context = 4000;
  unsigned seed = 1;
};

void List() {
  std::vector<std::vector<std::string>> rows = {{"workload", "the model is to"}};
  for (const WorkloadKind& workload : Workloads()) {
    rows.push_back({std::string(workload.name), std::string(workload.what)});
  }
  WriteOut(FormatTable(rows));
}

void Show(const ShowArguments& arguments) {
  const Tokenizer tokenizer(arguments.model);
  const PromptText prompt =
      MakeWorkload(arguments.name, arguments.context, arguments.seed, CounterOf(tokenizer));
  nlohmann::ordered_json object;
  object["id"] = prompt.id;
  if (prompt.messages.empty()) {
    object["prompt"] = prompt.text;
  } else {
    for (const ChatMessage& message : prompt.messages) {
      object["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  WriteOut(Dump(object) + "\n");
}

}  // namespace

void AddWorkloads(CLI::App& app) {
  CLI::App* command = app.add_subcommand("workloads", "Built-in long prompts");
  command->require_subcommand(1);
  command->add_subcommand("list", "What there is")->callback([] { List(); });
  CLI::App* show = command->add_subcommand("show", "One as a line of generate's --prompts");
  const auto arguments = std::make_shared<ShowArguments>();
  show->add_option("name", arguments->name, "As listed")->required();
  show->add_option("-m,--model", arguments->model, "GGUF file whose tokens are counted")
      ->required();
  show->add_option("--context", arguments->context, "Tokens, at most")
      ->check(CLI::Range(64, 1 << 24))
      ->capture_default_str();
  show->add_option("--seed", arguments->seed, "Another one of its kind")->capture_default_str();
  show->callback([arguments] { Show(*arguments); });
  command->footer(
      "Example:\n"
      "  vericache workloads show extract -m model.gguf --context 4000 > prompts.jsonl\n"
      "  vericache generate -m model.gguf --prompts prompts.jsonl");
}

}  // namespace vericache
