#include "server/fields.h"

#include <sstream>

namespace vericache {
namespace {

using json = nlohmann::ordered_json;

constexpr int kDeepest = 64;

std::string Number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// By the brackets and colons outside of texts. The parser's own callback would do for this, but
// with one it looks through a list anew at each of its elements.
void CheckSize(std::string_view text, const std::string& what, int& fields_left) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '"') {
      quoted = !quoted;
    } else if (quoted) {
      i += letter == '\\' ? 1 : 0;
    } else if (letter == '[' || letter == '{') {
      if (++depth > kDeepest) {
        throw ApiError::Invalid(what + " is nested more than " + std::to_string(kDeepest) +
                                " deep");
      }
    } else if (letter == ']' || letter == '}') {
      --depth;
    } else if (letter == ':' && --fields_left < 0) {
      throw ApiError::Invalid(what + " has more than " + std::to_string(kMostFields) + " fields");
    }
  }
}

}  // namespace

json ParseJson(std::string_view text, const std::string& what, int& fields_left) {
  CheckSize(text, what, fields_left);
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: …"
    const std::string message = error.what();
    const std::size_t at = message.find("] ");
    throw ApiError::Invalid(
        what + " is not valid JSON: " +
        (at == std::string::npos ? message : message.substr(at + 2)).substr(0, 200));
  }
}

json ParseBody(std::string_view body) {
  int fields_left = kMostFields;
  json object = ParseJson(body, "the body", fields_left);
  if (!object.is_object()) {
    throw ApiError::Invalid("the body is not a JSON object");
  }
  return object;
}

const json* Fields::Find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<double> Fields::Number(const char* name, double least, double most) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    throw Wrong(name, "must be a number from " + vericache::Number(least) + " to " +
                          vericache::Number(most));
  }
  return value->get<double>();
}

std::optional<std::int64_t> Fields::Integer(const char* name, std::int64_t least,
                                            std::int64_t most) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  // Above what an int64 holds it would wrap.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    throw Wrong(name, "must be a whole number from " + std::to_string(least) + " to " +
                          std::to_string(most));
  }
  return value->get<std::int64_t>();
}

bool Fields::Flag(const char* name) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return false;
  }
  if (!value->is_boolean()) {
    throw Wrong(name, "must be true or false");
  }
  return value->get<bool>();
}

std::optional<std::string> Fields::Text(const char* name) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    throw Wrong(name, "must be text");
  }
  return value->get<std::string>();
}

const json* Fields::Object(const char* name) const {
  const json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    throw Wrong(name, "must be an object");
  }
  return value;
}

const json* Fields::List(const char* name) const {
  const json* value = Find(name);
  if (value != nullptr && !value->is_array()) {
    throw Wrong(name, "must be a list");
  }
  return value;
}

}  // namespace vericache
