#include "server/served.h"

#include <chrono>
#include <sstream>

#include "gtest/gtest.h"

namespace vericache {
namespace {

ServerOptions WithDefaults(ServerOptions options, const Model& model) {
  options.port = 0;
  options.model_name = "tiny";
  options.context = options.context == 0 ? model.params().context : options.context;
  return options;
}

}  // namespace

Served::Served(const EngineOptions& engine, ServerOptions options)
    : options_(WithDefaults(std::move(options), LoadTiny(ServedModel()))),
      model_(LoadTiny(ServedModel())),
      tokenizer_(TinyGgufPath(ServedModel())) {
  EngineOptions with_end = engine;
  with_end.is_end = [this](TokenId token) { return tokenizer_.IsEnd(token); };
  loop_ = std::make_unique<EngineLoop>(model_, tokenizer_, with_end, options_.queue, metrics_);
  server_ = std::make_unique<HttpServer>(options_, model_, tokenizer_, *loop_, metrics_);
  port_ = server_->Bind();
  thread_ = std::thread([this] { server_->Listen(); });
}

Served::~Served() {
  server_->Stop();
  thread_.join();
}

httplib::Client Served::Client() const {
  httplib::Client client("127.0.0.1", port_);
  client.set_read_timeout(60);
  return client;
}

Json Served::Post(const std::string& path, const Json& body, int status) const {
  const auto response = Client().Post(path, body.dump(), "application/json");
  EXPECT_TRUE(response) << path;
  if (!response) {
    return {};
  }
  EXPECT_EQ(response->status, status) << response->body;
  return Json::parse(response->body);
}

std::vector<Json> Served::Stream(const std::string& path, Json body) const {
  body["stream"] = true;
  const auto response = Client().Post(path, body.dump(), "application/json");
  EXPECT_TRUE(response && response->status == 200) << path;
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  return Events(response->body);
}

double Served::Metric(const std::string& name) const {
  const auto response = Client().Get("/metrics");
  EXPECT_TRUE(response && response->status == 200);
  std::istringstream lines(response->body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) {
      return std::stod(line.substr(name.size() + 1));
    }
  }
  ADD_FAILURE() << "no metric " << name;
  return -1.0;
}

bool Served::BecomesEmpty(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    if (Metric("vericache_num_requests_waiting") + Metric("vericache_num_requests_running") == 0) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  bool done = false;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      continue;
    }
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    EXPECT_FALSE(done) << line;
    done = line == "data: [DONE]";
    if (!done) {
      events.push_back(Json::parse(line.substr(6)));
    }
  }
  EXPECT_TRUE(done) << body;
  return events;
}

}  // namespace vericache
