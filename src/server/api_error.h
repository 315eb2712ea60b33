#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "nlohmann/json.hpp"

namespace vericache {

// What a client did wrong, or why it gets no answer, in the shape of OpenAI's
// API.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string type, const std::string& message,
           std::optional<std::string> param = std::nullopt,
           std::optional<std::string> code = std::nullopt)
      : std::runtime_error(message),
        status_(status),
        type_(std::move(type)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  // A request that can never be served as it is: 400.
  static ApiError Invalid(const std::string& message,
                          std::optional<std::string> param = std::nullopt,
                          std::optional<std::string> code = std::nullopt) {
    return {400, "invalid_request_error", message, std::move(param), std::move(code)};
  }
  static ApiError Overloaded(int retry_after_s) {
    ApiError error(429, "rate_limit_error", "the queue is full; try again later", std::nullopt,
                   "queue_full");
    error.retry_after_s_ = retry_after_s;
    return error;
  }

  int status() const { return status_; }
  // Of a 429.
  std::optional<int> retry_after_s() const { return retry_after_s_; }

  // {"error": {"message", "type", "param", "code"}}
  nlohmann::ordered_json ToJson() const {
    const auto or_null = [](const std::optional<std::string>& text) {
      return text ? nlohmann::ordered_json(*text) : nlohmann::ordered_json();
    };
    return {{"error",
             {{"message", what()},
              {"type", type_},
              {"param", or_null(param_)},
              {"code", or_null(code_)}}}};
  }

 private:
  int status_;
  std::string type_;
  std::optional<std::string> param_;
  std::optional<std::string> code_;
  std::optional<int> retry_after_s_;
};

}  // namespace vericache
