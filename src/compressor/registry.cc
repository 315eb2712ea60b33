#include <array>
#include <memory>
#include <string>

#include "base/error.h"
#include "compressor/compressor.h"
#include "compressor/snapkv.h"
#include "compressor/streamingllm.h"

namespace vericache {
namespace {

// KIVI's residual_length in the authors' examples: the newest tokens that stay in 16 bits.
constexpr int kKiviResidual = 128;

struct ScorerEntry {
  std::string_view name;
  std::unique_ptr<TokenScorer> (*make)();
};

struct FormatEntry {
  std::string_view name;
  KvFormat format;
  int residual;
};

constexpr std::array kScorers = {
    ScorerEntry{"streamingllm",
                []() -> std::unique_ptr<TokenScorer> { return std::make_unique<StreamingLlm>(); }},
    ScorerEntry{"snapkv",
                []() -> std::unique_ptr<TokenScorer> { return std::make_unique<SnapKv>(); }},
};

constexpr std::array kFormats = {
    FormatEntry{"kivi4", {NumberFormat::kKivi4, NumberFormat::kKivi4}, kKiviResidual},
    FormatEntry{"kivi2", {NumberFormat::kKivi2, NumberFormat::kKivi2}, kKiviResidual},
};

[[noreturn]] void RefuseName(std::string_view name) {
  std::string known;
  for (const std::string& each : CompressorNames()) {
    known += (known.empty() ? "" : ", ") + each;
  }
  throw UserError("unknown compressor '" + std::string(name) + "'; known are " + known +
                  ", and a drop method with a format, such as snapkv+kivi4");
}

}  // namespace

std::vector<std::string> CompressorNames() {
  std::vector<std::string> names = {"none"};
  for (const ScorerEntry& entry : kScorers) {
    names.emplace_back(entry.name);
  }
  for (const FormatEntry& entry : kFormats) {
    names.emplace_back(entry.name);
  }
  return names;
}

Compressor MakeCompressor(std::string_view name) {
  Compressor compressor{
      .name = std::string(name), .scorer = nullptr, .format = std::nullopt, .residual = 0};
  if (name == "none") {
    return compressor;
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('+', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    begin = end + 1;
    bool used = false;
    for (const ScorerEntry& entry : kScorers) {
      if (entry.name == part && !compressor.scorer) {
        compressor.scorer = entry.make();
        used = true;
      }
    }
    for (const FormatEntry& entry : kFormats) {
      if (entry.name == part && !compressor.format) {
        compressor.format = entry.format;
        compressor.residual = entry.residual;
        used = true;
      }
    }
    if (!used) {
      RefuseName(name);
    }
  }
  return compressor;
}

}  // namespace vericache
