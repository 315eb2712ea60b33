#pragma once

#include <stdexcept>
#include <string>

namespace vericache {

// Something that a user can cause and mend: a missing file, an impossible option. The message is
// one line that says what is wrong, where, and what to do.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user asked to stop (Ctrl-C); nothing is wrong.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

}  // namespace vericache
