#include "cli/whole_file.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace vericache {

WholeFile::WholeFile(const std::string& path) : path_(path), part_(path + ".part") {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    part_ = path;  // a pipe or a terminal
  }
  file_.open(part_, std::ios::binary);
  if (!file_) {
    throw UserError(path + ": cannot be written");
  }
}

WholeFile::~WholeFile() {
  std::error_code ignored;
  if (part_ != path_) {
    std::filesystem::remove(part_, ignored);
  }
}

void WholeFile::Finish(const std::string& text) {
  file_ << text;
  std::error_code error;
  if (file_.flush() && part_ != path_) {
    std::filesystem::rename(part_, path_, error);
  }
  if (!file_ || error) {
    throw UserError(path_ + ": cannot be written");
  }
}

}  // namespace vericache
