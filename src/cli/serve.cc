#include <atomic>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/types.h"
#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/output.h"
#include "server/http_server.h"

namespace vericache {
namespace {

struct ServeArguments {
  std::string model;
  std::string policy = "vericache";
  int batch = 8;
  std::string body_limit = "8MiB";
  int deadline_s = 600;
  int read_timeout_s = 10;
  int request_timeout_s = 60;
  EngineArguments engine;
  ServerOptions server;
};

sigset_t Endings() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// Whether one of them came within that time.
bool ComesWithin(long milliseconds) {
  const sigset_t set = Endings();
  const timespec patience{.tv_sec = 0, .tv_nsec = milliseconds * 1'000'000};
  return sigtimedwait(&set, nullptr, &patience) > 0;
}

// Until a signal has come and what was asked until then is answered, or the engine has failed.
void Serve(HttpServer& server, const EngineLoop& loop) {
  std::atomic<bool> ended{false};
  std::thread listener([&] {
    server.Listen();
    ended.store(true);
  });
  bool draining = false;
  constexpr long kPatience = 50;
  while (!ended.load()) {
    const bool signal = ComesWithin(kPatience);
    if (signal && draining) {
      std::fprintf(stderr, "vericache: ended at once\n");
      std::_Exit(kExitInterrupted);
    }
    if ((signal || !loop.failure().empty()) && !draining) {
      draining = true;
      if (signal) {
        std::fprintf(stderr, "vericache: finishing what was asked; a second signal ends at once\n");
      }
      server.Stop();
    }
  }
  listener.join();
  if (!loop.failure().empty()) {
    throw std::runtime_error("the engine has failed: " + loop.failure());
  }
}

void RunServe(ServeArguments& arguments) {
  EngineOptions& options = arguments.engine.options;
  ServerOptions& server_options = arguments.server;
  options.policy = PolicyOf(arguments.policy);
  options.batch = arguments.batch;
  server_options.body_limit = ParseBytes(arguments.body_limit).count;
  server_options.deadline = std::chrono::seconds(arguments.deadline_s);
  server_options.read_timeout = std::chrono::seconds(arguments.read_timeout_s);
  server_options.request_timeout = std::chrono::seconds(arguments.request_timeout_s);
  arguments.engine.Resolve();

  // The threads that are made from here on leave the signals to this one.
  const sigset_t endings = Endings();
  pthread_sigmask(SIG_BLOCK, &endings, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const Model model(arguments.model,
                    {.threads = options.threads,
                     .weights = arguments.engine.weights.For(arguments.model, options.threads)});
  const Tokenizer tokenizer(arguments.model);
  arguments.engine.ResolveRest(tokenizer);
  options.is_end = [&tokenizer](TokenId token) { return tokenizer.IsEnd(token); };
  const int context = model.params().context;
  if (server_options.context > context) {
    throw UserError("--context is " + std::to_string(server_options.context) +
                    ", but the model's is " + std::to_string(context));
  }
  if (server_options.context == 0) {
    server_options.context = context;
  }
  if (server_options.model_name.empty()) {
    server_options.model_name = std::filesystem::path(arguments.model).stem().string();
  }
  Metrics metrics;
  EngineLoop loop(model, tokenizer, options, server_options.queue, metrics);
  HttpServer server(server_options, model, tokenizer, loop, metrics);
  const int port = server.Bind();
  const bool ipv6 = server_options.host.find(':') != std::string::npos;
  const std::string host = ipv6 ? "[" + server_options.host + "]" : server_options.host;
  WriteOut("http://" + host + ":" + std::to_string(port) + "\n");
  Serve(server, loop);
}

void AddLimits(CLI::App& command, ServeArguments& arguments) {
  ServerOptions& server = arguments.server;
  command.add_option("--queue", server.queue, "Answers that wait, at most; more are refused (429)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      .add_option("--deadline", arguments.deadline_s,
                  "Seconds that an answer may take, from when it was asked for")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--body-limit", arguments.body_limit, "Size of a request's body, at most")
      ->capture_default_str();
  command
      .add_option("--read-timeout", arguments.read_timeout_s,
                  "Seconds for a client to go on with its request, or to take its answer")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  command
      .add_option("--request-timeout", arguments.request_timeout_s,
                  "Seconds for a client to send a request as a whole")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  command
      .add_option("--context", server.context,
                  "Tokens of prompt and answer, at most (default: the model's context)")
      ->check(CLI::Range(1, 100'000'000));
  command
      .add_option("--max-tokens", server.max_tokens,
                  "Tokens of an answer where a request does not say")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
}

// What a file says outside of sections is for serve, too.
class ServeConfig : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> read = CLI::ConfigTOML::from_config(input);
    for (CLI::ConfigItem& item : read) {
      if (item.parents.empty()) {
        item.parents = {"serve"};
      }
    }
    return read;
  }
};

// --fast-memory is VERICACHE_FAST_MEMORY, too.
void NameVariables(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help") {
      continue;
    }
    std::string name = "VERICACHE_" + option->get_lnames()[0];
    for (char& letter : name) {
      letter =
          letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    }
    option->envname(name);
  }
}

}  // namespace

void AddServe(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "Answer over HTTP, in the shape of OpenAI's API");
  command->add_option("-m,--model", arguments->model, "GGUF file")->required();
  command->add_option("--host", arguments->server.host, "Address to listen at")
      ->capture_default_str();
  command->add_option("--port", arguments->server.port, "Port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--model-name", arguments->server.model_name,
                      "What clients call the model (default: the file's name)");
  command->add_option("--api-key", arguments->server.api_keys,
                      "Key that clients must send; may be given more than once (default: none)");
  command
      ->add_option("--policy", arguments->policy,
                   "full: decode on the full cache; lossy: drafts are the output; vericache: "
                   "drafts are verified; lockstep: all at the same time; auto: drafts only where "
                   "it pays")
      ->capture_default_str();
  command->add_option("--batch", arguments->batch, "Answers computed at once, at most")
      ->capture_default_str();
  AddLimits(*command, *arguments);
  arguments->engine.AddTo(*command);
  NameVariables(*command);
  app.set_config("--config", "", "Options of serve from a TOML file");
  app.config_formatter(std::make_shared<ServeConfig>());
  for (CLI::App* each : {&app, command}) {
    each->allow_config_extras(CLI::config_extras_mode::error);
  }
  command->fallthrough();
  command->footer(
      "Each option may also stand in a --config file (port = 8080) or in a variable\n"
      "(VERICACHE_PORT=8080); options come first, then the file, then variables.\n"
      "\n"
      "Examples:\n"
      "  vericache serve -m model.gguf\n"
      "  vericache serve -m model.gguf --compressor snapkv+kivi4 --keep 0.3 --batch 16 \\\n"
      "      --fast-memory 512MiB --full-store disk:/var/tmp/vericache --prefixes memory:1GiB\n"
      "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
      "\"content\": \"Hello\"}]}'");
  command->callback([arguments] { RunServe(*arguments); });
}

}  // namespace vericache
