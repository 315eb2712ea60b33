#pragma once

#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace vericache {

// XXH3-64 over the raw bits of logits rows, in the order of the tokens that they gave: two runs
// with equal digests computed the same logits, bit for bit.
class LogitsDigest {
 public:
  LogitsDigest();
  void Add(std::span<const float> logits);
  std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace vericache
