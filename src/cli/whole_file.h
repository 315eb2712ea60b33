#pragma once

#include <fstream>
#include <string>

namespace vericache {

// A file that is there as a whole or not at all: it grows beside its place, under another name.
class WholeFile {
 public:
  // Throws UserError where it cannot be made, before anything is computed.
  explicit WholeFile(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Writes all of it. Throws UserError where it cannot.
  void Finish(const std::string& text);

 private:
  std::string path_;
  std::string part_;
  std::ofstream file_;
};

}  // namespace vericache
