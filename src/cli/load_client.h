// One request to a server that speaks OpenAI's API, and how long its answer took.
#pragma once

#include <string>
#include <vector>

namespace vericache {

struct LoadRequest {
  double at = 0.0;  // seconds after the begin
  std::string prompt;
  int max_tokens = 0;
};

// Times in seconds.
struct LoadAnswer {
  std::string error;         // empty where it is complete
  double first_token = 0.0;  // after the request was sent
  std::vector<double> gaps;  // between the pieces that followed
  double whole = 0.0;
  int tokens = 0;
};

// Streams a completion from `url`. `model` may be empty.
LoadAnswer AskServer(const std::string& url, const std::string& key, const std::string& model,
                     const LoadRequest& request);

}  // namespace vericache
