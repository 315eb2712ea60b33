// The fields of a JSON object, each of a type and within bounds; null counts as
// absent.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "server/api_error.h"

namespace vericache {

// In order, an object finds its fields one by one.
inline constexpr int kMostFields = 10'000;

// JSON from outside, of which `what` says what it is, such as "the body"; its fields are taken from
// `fields_left`. Throws ApiError where it is none, is nested too deeply, or has too many fields.
nlohmann::ordered_json ParseJson(std::string_view text, const std::string& what, int& fields_left);

// The JSON of a body, an object. Throws ApiError where it is none, is nested too deeply, or has too
// many fields.
nlohmann::ordered_json ParseBody(std::string_view body);

class Fields {
 public:
  // `prefix` is what the names of its fields begin with in messages, such as
  // "stream_options.".
  explicit Fields(const nlohmann::ordered_json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Throw ApiError where the field has another type or is out of bounds.
  std::optional<double> Number(const char* name, double least, double most) const;
  std::optional<std::int64_t> Integer(const char* name, std::int64_t least,
                                      std::int64_t most) const;
  bool Flag(const char* name) const;
  std::optional<std::string> Text(const char* name) const;
  // nullptr where it is absent.
  const nlohmann::ordered_json* Find(const char* name) const;
  const nlohmann::ordered_json* Object(const char* name) const;
  const nlohmann::ordered_json* List(const char* name) const;

  ApiError Wrong(const char* name, const std::string& what) const {
    return ApiError::Invalid("'" + prefix_ + name + "' " + what, prefix_ + name);
  }

 private:
  const nlohmann::ordered_json& object_;
  std::string prefix_;
};

}  // namespace vericache
