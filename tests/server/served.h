// A server with a tiny random model, in this process.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "httplib.h"
#include "nlohmann/json.hpp"
#include "server/http_server.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {

using Json = nlohmann::json;

// A vocabulary of bytes: a prompt has as many tokens as bytes.
inline TinyModel ServedModel() {
  return {.vocabulary = 257, .context = 3000, .byte_tokens = true, .never_last_token = true};
}

class Served {
 public:
  explicit Served(const EngineOptions& engine = VeriCacheOptions("kivi4", 1.0, 8),
                  ServerOptions options = {});
  ~Served();
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  int port() const { return port_; }
  httplib::Client Client() const;
  // The answer to a POST; its status may be wanted.
  Json Post(const std::string& path, const Json& body, int status = 200) const;
  // The objects of a stream, up to [DONE].
  std::vector<Json> Stream(const std::string& path, Json body) const;
  // A sample of /metrics, such as vericache_num_requests{state="waiting"}.
  double Metric(const std::string& name) const;
  // Waits until no request is left; false where that takes longer.
  bool BecomesEmpty(double seconds) const;
  void Stop() { server_->Stop(); }

 private:
  ServerOptions options_;
  const Model& model_;
  Tokenizer tokenizer_;
  Metrics metrics_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::thread thread_;
};

// The objects of server-sent events; "[DONE]" must be the last one.
std::vector<Json> Events(const std::string& body);

}  // namespace vericache
