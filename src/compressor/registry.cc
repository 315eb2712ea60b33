#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "base/error.h"
#include "compressor/compressor.h"
#include "compressor/expected_attention.h"
#include "compressor/h2o.h"
#include "compressor/kvzip.h"
#include "compressor/options.h"
#include "compressor/snapkv.h"
#include "compressor/streamingllm.h"

namespace vericache {
namespace {

// KIVI's residual_length in the authors' examples: the newest tokens that stay in 16 bits.
constexpr int kKiviResidual = 128;

struct ScorerEntry {
  std::string_view name;
  bool blends;  // whether a refresh can blend its scores with newer attention
  std::unique_ptr<TokenScorer> (*make)(MethodOptions& options);
};

struct Packing {
  KvFormat format;
  int residual;
};

struct FormatEntry {
  std::string_view name;
  Packing (*make)(MethodOptions& options);
};

int Residual(MethodOptions& options, int otherwise) {
  return options.Integer("residual", otherwise, 0, 1 << 20);
}

RefreshOptions RefreshOf(MethodOptions& options) {
  return {.blend = options.Number("refresh", 0.0, 0.0, 1.0),
          .queries = options.Integer("refresh-queries", RefreshOptions::kQueries, 1, 256)};
}

template <typename Scorer>
std::unique_ptr<TokenScorer> Make(MethodOptions& options) {
  return std::make_unique<Scorer>(options);
}

constexpr std::array kScorers = {
    ScorerEntry{"streamingllm", false, Make<StreamingLlm>},
    ScorerEntry{"snapkv", true, Make<SnapKv>},
    ScorerEntry{"expectedattention", true, Make<ExpectedAttention>},
    ScorerEntry{"kvzip", true, Make<KvZip>},
    ScorerEntry{"h2o", false, Make<H2o>},
};

constexpr std::array kFormats = {
    FormatEntry{"q8",
                [](MethodOptions& options) {
                  return Packing{{NumberFormat::kQ8, NumberFormat::kQ8}, Residual(options, 0)};
                }},
    FormatEntry{"q4",
                [](MethodOptions& options) {
                  return Packing{{NumberFormat::kQ4, NumberFormat::kQ4}, Residual(options, 0)};
                }},
    FormatEntry{"kivi4",
                [](MethodOptions& options) {
                  return Packing{{NumberFormat::kKivi4, NumberFormat::kKivi4},
                                 Residual(options, kKiviResidual)};
                }},
    FormatEntry{"kivi2",
                [](MethodOptions& options) {
                  return Packing{{NumberFormat::kKivi2, NumberFormat::kKivi2},
                                 Residual(options, kKiviResidual)};
                }},
};

std::string Known() {
  std::string known;
  for (const std::string& each : CompressorNames()) {
    known += (known.empty() ? "" : ", ") + each;
  }
  return known;
}

[[noreturn]] void RefuseName(std::string_view name, std::string_view part) {
  const auto is_part = [part](const auto& entry) { return entry.name == part; };
  if (std::ranges::any_of(kScorers, is_part) || std::ranges::any_of(kFormats, is_part)) {
    throw UserError("'" + std::string(name) +
                    "' has two drop methods, or two formats; it may have " + "one of each, of " +
                    Known());
  }
  throw UserError("unknown compressor '" + std::string(name) + "'; known are " + Known() +
                  ", formats of keys and values, such as k=q8,v=q4, and a drop method with a "
                  "format, such as snapkv+kivi4");
}
// Keys and values each in a format of their own: "k=q8,v=q4".
Packing EachInItsOwn(MethodOptions& options) {
  constexpr std::array<std::string_view, 7> kNames = {"f32", "f16",   "bf16", "q8",
                                                      "q4",  "kivi4", "kivi2"};
  const auto format = [&](std::string_view which) {
    return *ParseNumberFormat(options.Word(which, "f16", kNames));
  };
  const NumberFormat keys = format("k");
  const NumberFormat values = format("v");
  const auto is_kivi = [](NumberFormat each) { return IsGrouped(each) && !IsBlocked(each); };
  return {{keys, values}, Residual(options, is_kivi(keys) || is_kivi(values) ? kKiviResidual : 0)};
}

// Whether the part was taken: it names a method of a kind that the compressor has not yet.
bool Take(std::string_view method, std::string_view text, Compressor& compressor) {
  MethodOptions options(method.empty() ? "a pair of formats" : method, text);
  for (const ScorerEntry& entry : kScorers) {
    if (entry.name == method && !compressor.scorer) {
      compressor.scorer = entry.make(options);
      compressor.refresh = entry.blends ? RefreshOf(options) : RefreshOptions{};
      options.CheckAllKnown();
      return true;
    }
  }
  Packing (*pack)(MethodOptions&) = method.empty() && !text.empty() ? EachInItsOwn : nullptr;
  for (const FormatEntry& entry : kFormats) {
    pack = entry.name == method ? entry.make : pack;
  }
  if (pack != nullptr && !compressor.format) {
    const Packing packing = pack(options);
    options.CheckAllKnown();
    compressor.format = packing.format;
    compressor.residual = packing.residual;
    return true;
  }
  return false;
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

std::string CompressorOptions(std::string_view name) {
  MethodOptions options(name, "");
  for (const ScorerEntry& entry : kScorers) {
    if (entry.name == name) {
      entry.make(options);
      if (entry.blends) {
        RefreshOf(options);
      }
    }
  }
  for (const FormatEntry& entry : kFormats) {
    if (entry.name == name) {
      entry.make(options);
    }
  }
  return options.Defaults();
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
    const std::size_t colon = std::min(part.find(':'), part.size());
    const bool options_alone = colon == part.size() && part.find('=') != std::string_view::npos;
    const std::string_view method = options_alone ? "" : part.substr(0, colon);
    const std::string_view text =
        options_alone ? part : part.substr(std::min(colon + 1, part.size()));
    if (!Take(method, text, compressor)) {
      RefuseName(name, method);
    }
  }
  return compressor;
}

}  // namespace vericache
