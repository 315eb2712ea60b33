#include "cli/whole_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace vericache {

WholeFile::WholeFile(const std::string& path) : path_(path), part_(path + ".part") {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    part_ = path;  // a pipe or a terminal
    return;
  }
  // Nothing of it is left where the work is interrupted.
  const bool can_be_made = std::ofstream(part_, std::ios::binary).is_open();
  std::filesystem::remove(part_, ignored);
  if (!can_be_made) {
    throw UserError(path + ": cannot be written");
  }
}

void WholeFile::Finish(const std::string& text) {
  std::ofstream file(part_, std::ios::binary);
  file << text;
  std::error_code error;
  if (file.flush() && part_ != path_) {
    std::filesystem::rename(part_, path_, error);
  }
  if (!file || error) {
    std::error_code ignored;
    if (part_ != path_) {
      std::filesystem::remove(part_, ignored);
    }
    throw UserError(path_ + ": cannot be written");
  }
}

}  // namespace vericache
