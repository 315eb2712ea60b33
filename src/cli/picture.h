#pragma once

#include <string>

#include "cli/whole_file.h"

namespace vericache {

// A file that a picture will be drawn into: a PNG where its name ends in ".png", otherwise an SVG.
class PictureFile {
 public:
  // Throws UserError where the name ends in something else, or the file cannot be made, before
  // anything is computed.
  explicit PictureFile(const std::string& path);

  // Throws UserError where it cannot be written.
  void Finish(const std::string& svg);

 private:
  bool png_;
  WholeFile file_;
};

}  // namespace vericache
