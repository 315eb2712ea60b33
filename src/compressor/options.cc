#include "compressor/options.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace vericache {
namespace {

template <typename T>
std::optional<T> Parse(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::string TextOf(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

}  // namespace

MethodOptions::MethodOptions(std::string_view method, std::string_view text) : method_(method) {
  while (!text.empty()) {
    const std::string_view option = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), option.size() + 1));
    const std::size_t equals = option.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == option.size()) {
      throw UserError("'" + std::string(option) + "' is not an option of " + method_ +
                      "; they are given as name=value, separated by commas");
    }
    if (!given_.emplace(option.substr(0, equals), option.substr(equals + 1)).second) {
      throw UserError("the option " + std::string(option.substr(0, equals)) + " of " + method_ +
                      " is given twice");
    }
  }
}

const std::string* MethodOptions::Ask(std::string_view name, const std::string& otherwise) {
  asked_.emplace_back(name, otherwise);
  const auto found = given_.find(name);
  return found == given_.end() ? nullptr : &found->second;
}

void MethodOptions::Refuse(std::string_view name, const std::string& value,
                           const std::string& wanted) const {
  throw UserError("the option " + std::string(name) + " of " + method_ + " is " + wanted +
                  ", not '" + value + "'");
}

int MethodOptions::Integer(std::string_view name, int otherwise, int least, int most) {
  const std::string* text = Ask(name, std::to_string(otherwise));
  if (text == nullptr) {
    return otherwise;
  }
  const std::optional<int> value = Parse<int>(*text);
  if (!value || *value < least || *value > most) {
    Refuse(name, *text,
           "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *value;
}

double MethodOptions::Number(std::string_view name, double otherwise, double least, double most) {
  const std::string* text = Ask(name, TextOf(otherwise));
  if (text == nullptr) {
    return otherwise;
  }
  const std::optional<double> value = Parse<double>(*text);
  if (!value || !(*value >= least && *value <= most)) {
    Refuse(name, *text, "a number from " + TextOf(least) + " to " + TextOf(most));
  }
  return *value;
}

std::string_view MethodOptions::Word(std::string_view name, std::string_view otherwise,
                                     std::span<const std::string_view> known) {
  const std::string* text = Ask(name, std::string(otherwise));
  if (text == nullptr) {
    return otherwise;
  }
  const auto found = std::ranges::find(known, std::string_view(*text));
  if (found == known.end()) {
    std::string list;
    for (const std::string_view each : known) {
      list += (list.empty() ? "" : ", ") + std::string(each);
    }
    Refuse(name, *text, "one of " + list);
  }
  return *found;
}

std::string MethodOptions::Text(std::string_view name, const std::string& otherwise) {
  const std::string* text = Ask(name, otherwise);
  return text == nullptr ? otherwise : *text;
}

void MethodOptions::CheckAllKnown() const {
  for (const auto& [name, value] : given_) {
    const bool known =
        std::ranges::any_of(asked_, [&name](const auto& each) { return each.first == name; });
    if (!known) {
      throw UserError(method_ + " has no option '" + name + "'" +
                      (asked_.empty() ? "" : "; with their defaults it has " + Defaults()));
    }
  }
}

std::string MethodOptions::Defaults() const {
  std::string list;
  for (const auto& [name, otherwise] : asked_) {
    list += (list.empty() ? "" : ",") + name + "=" + otherwise;
  }
  return list;
}

}  // namespace vericache
