// The HTTP side of the server: routes, keys, limits, errors.
#pragma once

#include <atomic>
#include <memory>

#include "model/model.h"
#include "model/tokenizer.h"
#include "server/completions.h"
#include "server/engine_loop.h"
#include "server/metrics.h"
#include "server/server_options.h"

namespace httplib {
class Server;
struct Request;
struct Response;
}  // namespace httplib

namespace vericache {

class HttpServer {
 public:
  // All that is referred to must outlive it.
  HttpServer(const ServerOptions& options, const Model& model, const Tokenizer& tokenizer,
             EngineLoop& loop, Metrics& metrics);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port that it listens at. Throws UserError where it cannot.
  int Bind();
  // Serves until Stop, and then until every request that came has its answer.
  void Listen();
  // From any thread.
  void Stop();

 private:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  void AddRoutes();
  void RefuseStrangers();
  void ShapeErrors();
  static Handler Guarded(Handler handler);

  void Health(httplib::Response& response) const;
  void Recent(httplib::Response& response) const;
  void Models(httplib::Response& response) const;
  void Tokenize(const httplib::Request& request, httplib::Response& response) const;
  void Detokenize(const httplib::Request& request, httplib::Response& response) const;

  const ServerOptions& options_;
  const Model& model_;
  const Tokenizer& tokenizer_;
  EngineLoop& loop_;
  Metrics& metrics_;
  Completions completions_;
  std::int64_t started_;  // seconds since 1970
  std::unique_ptr<httplib::Server> server_;
};

}  // namespace vericache
