#pragma once

#include <string>

namespace vericache {

// A file that is there as a whole or not at all: it is written beside its place, under another
// name.
class WholeFile {
 public:
  // Throws UserError where it cannot be made, before anything is computed.
  explicit WholeFile(const std::string& path);
  // Writes all of it. Throws UserError where it cannot.
  void Finish(const std::string& text);

 private:
  std::string path_;
  std::string part_;
};

}  // namespace vericache
