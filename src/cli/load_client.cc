#include "cli/load_client.h"

#include <chrono>

#include "base/clock.h"
#include "httplib.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using nlohmann::json;

constexpr int kPatienceS = 3600;

// Reads server-sent events as they come.
class Reader {
 public:
  explicit Reader(LoadAnswer& answer) : answer_(answer), start_(Clock::now()), last_(start_) {}

  void Take(const char* data, std::size_t size) {
    rest_.append(data, size);
    for (std::size_t end = rest_.find("\n\n"); end != std::string::npos; end = rest_.find("\n\n")) {
      const std::string event = rest_.substr(0, end);
      rest_.erase(0, end + 2);
      if (event.starts_with("data: ")) {
        TakeEvent(event.substr(6));
      }
    }
  }

  double SinceStart() const { return SecondsSince(start_); }
  bool done() const { return done_; }
  const std::string& rest() const { return rest_; }

 private:
  void TakeEvent(const std::string& text) {
    if (text == "[DONE]") {
      done_ = true;
      return;
    }
    const json event = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object() || event.contains("error")) {
      answer_.error = text.substr(0, 200);
      return;
    }
    if (event.contains("usage") && event["usage"].is_object()) {
      answer_.tokens = event["usage"].value("completion_tokens", answer_.tokens);
    }
    const json choices = event.value("choices", json::array());
    if (choices.empty() || choices[0].value("text", "").empty()) {
      return;
    }
    const Clock::time_point now = Clock::now();
    if (pieces_++ == 0) {
      answer_.first_token = Seconds(now - start_);
    } else {
      answer_.gaps.push_back(Seconds(now - last_));
    }
    last_ = now;
    answer_.tokens = std::max(answer_.tokens, pieces_);
  }

  LoadAnswer& answer_;
  Clock::time_point start_;
  Clock::time_point last_;
  std::string rest_;
  int pieces_ = 0;
  bool done_ = false;
};

}  // namespace

LoadAnswer AskServer(const std::string& url, const std::string& key, const std::string& model,
                     const LoadRequest& request) {
  json body = {{"prompt", request.prompt},
               {"max_tokens", request.max_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!model.empty()) {
    body["model"] = model;
  }
  httplib::Client client(url);
  client.set_read_timeout(kPatienceS);
  client.set_tcp_nodelay(true);
  if (!key.empty()) {
    client.set_bearer_token_auth(key);
  }
  LoadAnswer answer;
  Reader reader(answer);
  const auto response = client.Post("/v1/completions", httplib::Headers{}, body.dump(),
                                    "application/json", [&](const char* data, std::size_t size) {
                                      reader.Take(data, size);
                                      return true;
                                    });
  answer.whole = reader.SinceStart();
  if (!response) {
    answer.error = "no answer: " + httplib::to_string(response.error());
  } else if (response->status != 200) {
    answer.error = std::to_string(response->status) + " " + reader.rest().substr(0, 200);
  } else if (answer.error.empty() && !reader.done()) {
    answer.error = "the stream broke off";
  }
  return answer;
}

}  // namespace vericache
