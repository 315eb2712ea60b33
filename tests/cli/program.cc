#include "cli/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace vericache {
namespace {

using Clock = std::chrono::steady_clock;

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int ProgramResult::ErrorLines() const {
  return static_cast<int>(std::count(err.begin(), err.end(), '\n'));
}

void WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Program::Program(const std::vector<std::string>& arguments, const std::string& input,
                 long address_space_kib) {
  WriteText(folder_.path() / "in", input);
  std::vector<std::string> all = {VERICACHE_PROGRAM};
  if (address_space_kib > 0) {
    all = {"/bin/sh", "-c", "ulimit -v " + std::to_string(address_space_kib) + "; exec \"$@\"",
           "sh", VERICACHE_PROGRAM};
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const int write = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&files, 0, (folder_.path() / "in").c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, (folder_.path() / "out").c_str(), write, 0600);
  posix_spawn_file_actions_addopen(&files, 2, (folder_.path() / "err").c_str(), write, 0600);
  const int failed = posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    throw std::runtime_error("cannot start " + all[0]);
  }
}

Program::~Program() {
  if (!Poll()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
  }
}

bool Program::Poll() {
  if (!ended_) {
    ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  }
  return ended_;
}

bool Program::WaitForOutput(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until && !Poll()) {
    std::error_code none_yet;
    if (std::filesystem::file_size(folder_.path() / "out", none_yet) > 0 && !none_yet) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string Program::Output() const { return Read(folder_.path() / "out"); }

bool Program::StillRunsAfter(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return !Poll();
}

void Program::Signal(int signal) const { kill(pid_, signal); }

ProgramResult Program::Wait() {
  if (!ended_) {
    waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  return {.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
          .out = Read(folder_.path() / "out"),
          .err = Read(folder_.path() / "err")};
}

ProgramResult RunProgram(const std::vector<std::string>& arguments, const std::string& input,
                         long address_space_kib) {
  return Program(arguments, input, address_space_kib).Wait();
}

}  // namespace vericache
