#include "scheduler/policy.h"

#include <array>
#include <utility>

namespace vericache {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 5> kNames = {
    {{Policy::kFull, "full"},
     {Policy::kLossy, "lossy"},
     {Policy::kVeriCache, "vericache"},
     {Policy::kLockstep, "lockstep"},
     {Policy::kAuto, "auto"}}};

}  // namespace

std::string_view Name(Policy policy) {
  for (const auto& [each, name] : kNames) {
    if (each == policy) {
      return name;
    }
  }
  return "?";
}

std::optional<Policy> ParsePolicy(std::string_view name) {
  for (const auto& [policy, each] : kNames) {
    if (each == name) {
      return policy;
    }
  }
  return std::nullopt;
}

std::string PolicyNames() {
  std::string names;
  for (const auto& [policy, name] : kNames) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

}  // namespace vericache
