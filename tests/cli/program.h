// Runs the command-line program as a user does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/tiny_gguf.h"

namespace vericache {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal where one killed it
  std::string out;
  std::string err;

  int ErrorLines() const;
};

class Program {
 public:
  // Starts it with standard input from a text; `address_space_kib`, if not 0, is its `ulimit -v`.
  explicit Program(const std::vector<std::string>& arguments, const std::string& input = "",
                   long address_space_kib = 0);
  // Kills it where it still runs.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits until it wrote something to standard output; false where that takes longer or it ended.
  bool WaitForOutput(double seconds);
  // What it wrote to standard output so far.
  std::string Output() const;
  // False where it ended before.
  bool StillRunsAfter(double seconds);
  void Signal(int signal) const;
  ProgramResult Wait();

 private:
  bool Poll();

  TempDir folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

ProgramResult RunProgram(const std::vector<std::string>& arguments, const std::string& input = "",
                         long address_space_kib = 0);

void WriteText(const std::filesystem::path& path, const std::string& text);

}  // namespace vericache
