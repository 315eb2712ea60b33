#include "attention/kernel.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <utility>

#include "attention/kernel_amx.h"
#include "attention/kernel_scalar.h"
#include "attention/kernel_simd.h"
#include "base/error.h"

namespace vericache {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::size_t WorkspaceFloats(int head_dim) {
  return std::max(AmxWorkspaceFloats(head_dim), SimdWorkspaceFloats(head_dim));
}

const std::vector<AttentionKernel>& AvailableKernels() {
  static const std::vector<AttentionKernel> kKernels = [] {
    std::vector<AttentionKernel> all = {ScalarKernel()};
    for (AttentionKernel& kernel : SimdKernels()) {
      all.push_back(std::move(kernel));
    }
    if (std::optional<AttentionKernel> kernel = AmxKernel()) {
      all.push_back(*std::move(kernel));
    }
    return all;
  }();
  return kKernels;
}

namespace {

// The one that VERICACHE_ISA names; nullptr where it names none.
const AttentionKernel* WantedKernel() {
  const std::vector<AttentionKernel>& kernels = AvailableKernels();
  const char* wanted = std::getenv("VERICACHE_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return nullptr;
  }
  std::string known;
  for (const AttentionKernel& kernel : kernels) {
    if (Lower(kernel.name) == Lower(wanted)) {
      return &kernel;
    }
    known += (known.empty() ? "" : ", ") + Lower(kernel.name);
  }
  throw UserError("VERICACHE_ISA=" + std::string(wanted) +
                  " does not run on this machine; it has: " + known);
}

}  // namespace

const AttentionKernel& SelectKernel() {
  const AttentionKernel* wanted = WantedKernel();
  return wanted != nullptr ? *wanted : AvailableKernels().back();
}

const AttentionKernel& SelectDraftKernel() {
  if (const AttentionKernel* wanted = WantedKernel()) {
    return *wanted;
  }
  const std::vector<AttentionKernel>& kernels = AvailableKernels();
  return *std::find_if(kernels.rbegin(), kernels.rend(),
                       [](const AttentionKernel& kernel) { return kernel.name != "AMX"; });
}

}  // namespace vericache
