// The options of a method in a compressor's name: the "window=32,kernel=7" of
// "snapkv:window=32,kernel=7".
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vericache {

// A method asks for each option that it has, by name and default; then CheckAllKnown refuses the
// others.
class MethodOptions {
 public:
  // Throws UserError where `text` is not of this form, or has an option twice.
  MethodOptions(std::string_view method, std::string_view text);

  // The value of an option. Throws UserError where it is not a number from `least` to `most`.
  int Integer(std::string_view name, int otherwise, int least, int most);
  double Number(std::string_view name, double otherwise, double least, double most);
  // One of `known`. Throws UserError, listing them, where it is not.
  std::string_view Word(std::string_view name, std::string_view otherwise,
                        std::span<const std::string_view> known);

  // Any text.
  std::string Text(std::string_view name, const std::string& otherwise);

  // Throws UserError, listing the options asked for, where another one was given.
  void CheckAllKnown() const;

  // The options asked for, with their defaults: "window=32,kernel=5".
  std::string Defaults() const;

 private:
  // The text given for an option; nullptr where it was not.
  const std::string* Ask(std::string_view name, const std::string& otherwise);
  [[noreturn]] void Refuse(std::string_view name, const std::string& value,
                           const std::string& wanted) const;

  std::string method_;
  std::map<std::string, std::string, std::less<>> given_;
  std::vector<std::pair<std::string, std::string>> asked_;  // and their defaults
};

}  // namespace vericache
