#include "server/http_server.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "httplib.h"
#include "server/api_error.h"
#include "server/api_response.h"
#include "server/dashboard.h"
#include "server/deadline_server.h"

namespace vericache {
namespace {

// Connections beside those whose answers run or wait: to be told that the queue
// is full, for health and metrics, and for slow clients.
constexpr int kMoreConnections = 64;

void SendJson(httplib::Response& response, const OrderedJson& object) {
  response.set_content(Dump(object), "application/json");
}

void SendError(httplib::Response& response, const ApiError& error) {
  response.status = error.status();
  if (error.retry_after_s()) {
    response.set_header("Retry-After", std::to_string(*error.retry_after_s()));
  }
  SendJson(response, error.ToJson());
}

// Takes equally long wherever they differ.
bool SameKey(std::string_view key, std::string_view given) {
  std::size_t differs = key.size() ^ given.size();
  for (std::size_t i = 0; i < given.size(); ++i) {
    differs |= static_cast<std::size_t>(
        static_cast<unsigned char>(given[i]) ^
        static_cast<unsigned char>(key.empty() ? '\0' : key[i % key.size()]));
  }
  return differs == 0;
}

}  // namespace

HttpServer::HttpServer(const ServerOptions& options, const Model& model, const Tokenizer& tokenizer,
                       EngineLoop& loop, Metrics& metrics)
    : options_(options),
      model_(model),
      tokenizer_(tokenizer),
      loop_(loop),
      metrics_(metrics),
      completions_(options, tokenizer, loop),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      server_(std::make_unique<DeadlineServer>(options.request_timeout)) {
  const auto connections =
      static_cast<std::size_t>(loop_.options().batch + options_.queue + kMoreConnections);
  server_->new_task_queue = [connections] {
    return new httplib::ThreadPool(connections, connections, connections);
  };
  server_->set_payload_max_length(options_.body_limit);
  server_->set_read_timeout(options_.read_timeout);
  server_->set_write_timeout(options_.read_timeout);
  server_->set_tcp_nodelay(true);
  RefuseStrangers();
  ShapeErrors();
  AddRoutes();
}

HttpServer::~HttpServer() = default;

int HttpServer::Bind() {
  int port = options_.port;
  if (port == 0) {
    port = server_->bind_to_any_port(options_.host);
  } else if (!server_->bind_to_port(options_.host, port)) {
    port = -1;
  }
  if (port <= 0) {
    throw UserError("cannot listen at " + options_.host + ":" + std::to_string(options_.port) +
                    ": is the address this machine's, and the port free?");
  }
  return port;
}

void HttpServer::Listen() { server_->listen_after_bind(); }

void HttpServer::Stop() {
  completions_.Drain();
  server_->stop();
}

void HttpServer::RefuseStrangers() {
  server_->set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        const bool open = options_.api_keys.empty() || !request.path.starts_with("/v1/");
        const std::string given = request.get_header_value("Authorization");
        bool known = false;
        for (const std::string& key : options_.api_keys) {
          known = SameKey("Bearer " + key, given) || known;
        }
        if (open || known) {
          return httplib::Server::HandlerResponse::Unhandled;
        }
        SendError(response, ApiError(401, "invalid_request_error",
                                     "the API key is missing or wrong; send it as "
                                     "'Authorization: Bearer KEY'",
                                     std::nullopt, "invalid_api_key"));
        return httplib::Server::HandlerResponse::Handled;
      });
}

// Those that the library finds have OpenAI's shape, too.
void HttpServer::ShapeErrors() {
  server_->set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) {
      return;
    }
    std::string message = "the request is malformed";
    std::optional<std::string> code;
    if (response.status == 404) {
      message = "there is no " + request.method + " " + request.path;
      code = "unknown_url";
    } else if (response.status == 413) {
      message = "the body has more than " + std::to_string(options_.body_limit) + " bytes";
      code = "body_too_large";
    } else if (response.status >= 500) {
      message = "the server has failed";
    }
    const ApiError error(response.status,
                         response.status >= 500 ? "server_error" : "invalid_request_error", message,
                         std::nullopt, code);
    SendJson(response, error.ToJson());
  });
}

HttpServer::Handler HttpServer::Guarded(Handler handler) {
  return
      [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
        try {
          handler(request, response);
        } catch (const ApiError& error) {
          SendError(response, error);
        } catch (const UserError& error) {
          SendError(response, ApiError::Invalid(error.what()));
        } catch (const std::exception& error) {
          SendError(response, ApiError(500, "server_error", error.what()));
        }
      };
}

void HttpServer::AddRoutes() {
  using httplib::Request;
  using httplib::Response;
  const auto get = [this](const std::string& path, Handler handler) {
    server_->Get(path, Guarded(std::move(handler)));
  };
  const auto post = [this](const std::string& path, Handler handler) {
    server_->Post(path, Guarded(std::move(handler)));
  };
  get("/health", [this](const Request&, Response& response) { Health(response); });
  get("/metrics", [this](const Request&, Response& response) {
    response.set_content(metrics_.Text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  get("/", [](const Request&, Response& response) {
    response.set_content(std::string(DashboardPage()), "text/html; charset=utf-8");
  });
  get("/recent", [this](const Request&, Response& response) { Recent(response); });
  get("/v1/models", [this](const Request&, Response& response) { Models(response); });
  post("/v1/completions", [this](const Request& request, Response& response) {
    completions_.Serve(request, response, /*chat=*/false);
  });
  post("/v1/chat/completions", [this](const Request& request, Response& response) {
    completions_.Serve(request, response, /*chat=*/true);
  });
  post("/v1/tokenize",
       [this](const Request& request, Response& response) { Tokenize(request, response); });
  post("/v1/detokenize",
       [this](const Request& request, Response& response) { Detokenize(request, response); });
}

void HttpServer::Health(httplib::Response& response) const {
  if (!loop_.failure().empty()) {
    throw ApiError(503, "server_error", "the engine has failed");
  }
  SendJson(response, {{"status", "ok"}});
}

// What the dashboard lists.
void HttpServer::Recent(httplib::Response& response) const {
  OrderedJson list = OrderedJson::array();
  for (const AnswerSummary& each : metrics_.recent()) {
    list.push_back({{"ended", each.ended},
                    {"prompt_tokens", each.prompt_tokens},
                    {"tokens", each.tokens},
                    {"rounds", each.rounds},
                    {"acceptance_length", each.acceptance_length},
                    {"tokens_per_s", each.tokens_per_s},
                    {"finish_reason", each.finish_reason}});
  }
  SendJson(response, list);
}

void HttpServer::Models(httplib::Response& response) const {
  const OrderedJson model = {{"id", options_.model_name},
                             {"object", "model"},
                             {"created", started_},
                             {"owned_by", "vericache"},
                             {"max_model_len", options_.context}};
  SendJson(response, {{"object", "list"}, {"data", OrderedJson::array({model})}});
}

void HttpServer::Tokenize(const httplib::Request& request, httplib::Response& response) const {
  const ApiRequest asked = ParseTokenize(request.body);
  const std::vector<TokenId> tokens =
      asked.chat ? completions_.Encode(asked.messages) : completions_.Encode(asked.prompts.front());
  OrderedJson list = OrderedJson::array();
  for (const TokenId token : tokens) {
    list.push_back(Raw(token));
  }
  SendJson(
      response,
      {{"count", tokens.size()}, {"max_model_len", options_.context}, {"tokens", std::move(list)}});
}

void HttpServer::Detokenize(const httplib::Request& request, httplib::Response& response) const {
  const std::vector<TokenId> tokens = ParseDetokenize(request.body);
  if (std::ranges::any_of(
          tokens, [this](TokenId token) { return Raw(token) >= model_.params().vocabulary; })) {
    throw ApiError::Invalid("'tokens' has one that the model does not know", "tokens");
  }
  SendJson(response, {{"prompt", TextOfTokens(tokenizer_, tokens)}});
}

}  // namespace vericache
