#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "compressor/compressor.h"
#include "compressor/expected_attention.h"
#include "compressor/h2o.h"
#include "compressor/kvzap.h"
#include "compressor/kvzip.h"
#include "compressor/options.h"
#include "compressor/profile.h"
#include "compressor/snapkv.h"
#include "compressor/streamingllm.h"

namespace vericache {
namespace {

// KIVI's residual_length in the authors' examples: the newest tokens that stay in 16 bits.
constexpr int kKiviResidual = 128;

constexpr std::string_view kSplit = "split";

struct ScorerEntry {
  std::string_view name;
  bool blends;  // whether a refresh can blend its scores with newer attention
  std::unique_ptr<TokenScorer> (*make)(MethodOptions& options);
};

struct Packing {
  KvFormat format;
  int residual;
  std::optional<Split> split = std::nullopt;
  std::string calibration = "";
};

int DefaultResidual(KvFormat format) {
  const auto is_kivi = [](NumberFormat each) { return Traits(each).grouping == Grouping::kGroups; };
  return is_kivi(format.keys) || is_kivi(format.values) ? kKiviResidual : 0;
}

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
    ScorerEntry{"kvzap", false, Make<KvZap>},
    ScorerEntry{"h2o", false, Make<H2o>},
};

// The options of KVQuant formats, where there are any.
Packing WithKvQuant(Packing packing, MethodOptions& options) {
  KvFormat* const low = packing.split ? &packing.split->low : nullptr;
  if (IsKvQuant(packing.format) || (low != nullptr && IsKvQuant(*low))) {
    packing.calibration = options.Text("levels", "");
    const auto share = static_cast<float>(options.Number("outliers", 0.01, 0.0, 0.1));
    packing.format.outliers = share;
    if (low != nullptr) {
      low->outliers = share;
    }
  }
  return packing;
}

// A format for keys and values alike. KIVI keeps a residual, as the authors do; the others have
// none, but what does not fill a group.
Packing InBoth(NumberFormat format, MethodOptions& options) {
  return {{format, format}, Residual(options, DefaultResidual({format, format}))};
}

// The format of this name, if it quantizes.
std::optional<NumberFormat> PackedFormat(std::string_view name) {
  const std::optional<NumberFormat> format = ParseNumberFormat(name);
  return format && IsGrouped(*format) ? format : std::nullopt;
}

std::string Known() {
  std::string known;
  for (const std::string& each : CompressorNames()) {
    known += (known.empty() ? "" : ", ") + each;
  }
  return known;
}

[[noreturn]] void RefuseName(std::string_view name, std::string_view part) {
  const auto is_part = [part](const ScorerEntry& entry) { return entry.name == part; };
  if (std::ranges::any_of(kScorers, is_part) || PackedFormat(part) || part == kSplit) {
    throw UserError("'" + std::string(name) +
                    "' has two drop methods, or two formats; it may have " + "one of each, of " +
                    Known());
  }
  throw UserError("unknown compressor '" + std::string(name) + "'; known are " + Known() +
                  ", formats of keys and values, such as k=q8,v=q4, a drop method with a format, "
                  "such as snapkv+kivi4, and profile:FILE");
}

// The format that an option names.
NumberFormat FormatOption(MethodOptions& options, std::string_view which, NumberFormat otherwise) {
  constexpr auto kNames = [] {
    std::array<std::string_view, kNumberFormats.size()> names;
    std::ranges::transform(kNumberFormats, names.begin(), &FormatTraits::name);
    return names;
  }();
  return *ParseNumberFormat(options.Word(which, Name(otherwise), kNames));
}

// Keys and values each in a format of their own: "k=q8,v=q4".
Packing EachInItsOwn(MethodOptions& options) {
  const NumberFormat keys = FormatOption(options, "k", NumberFormat::kF16);
  const NumberFormat values = FormatOption(options, "v", NumberFormat::kF16);
  return {{keys, values}, Residual(options, DefaultResidual({keys, values}))};
}

// The important positions in more bits, the others in fewer: "split:high=q8,low=kivi2,share=0.25".
Packing InTwo(MethodOptions& options) {
  const NumberFormat high = FormatOption(options, "high", NumberFormat::kQ8);
  const NumberFormat high_values = FormatOption(options, "high_values", high);
  const NumberFormat low = FormatOption(options, "low", NumberFormat::kKivi2);
  const NumberFormat low_values = FormatOption(options, "low_values", low);
  const double share = options.Number("share", 0.25, 0.001, 1.0);
  return {{high, high_values}, Residual(options, 0), Split{{low, low_values}, share}};
}

// Makes the packing that a part of a name asks for; nullopt where it names none.
std::optional<Packing> PackingOf(std::string_view method, std::string_view text,
                                 MethodOptions& options) {
  if (method.empty() && !text.empty()) {
    return WithKvQuant(EachInItsOwn(options), options);
  }
  if (method == kSplit) {
    return WithKvQuant(InTwo(options), options);
  }
  const std::optional<NumberFormat> format = PackedFormat(method);
  return format ? std::optional(WithKvQuant(InBoth(*format, options), options)) : std::nullopt;
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
  if (compressor.format) {
    return false;
  }
  const std::optional<Packing> packing = PackingOf(method, text, options);
  if (!packing) {
    return false;
  }
  options.CheckAllKnown();
  compressor.format = packing->format;
  compressor.residual = packing->residual;
  compressor.split = packing->split;
  compressor.calibration = packing->calibration;
  return true;
}

}  // namespace

std::vector<std::string> CompressorNames() {
  std::vector<std::string> names = {"none"};
  for (const ScorerEntry& entry : kScorers) {
    names.emplace_back(entry.name);
  }
  for (const FormatTraits& each : kNumberFormats) {
    if (IsGrouped(each.format)) {
      names.emplace_back(each.name);
    }
  }
  names.emplace_back(kSplit);
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
  PackingOf(name, "", options);
  return options.Defaults();
}

Compressor MakeCompressor(std::string_view name) {
  Compressor compressor{
      .name = std::string(name), .scorer = nullptr, .format = std::nullopt, .residual = 0};
  if (name == "none") {
    return compressor;
  }
  constexpr std::string_view kProfile = "profile:";
  if (name.starts_with(kProfile)) {
    Profile profile = ReadProfile(std::string(name.substr(kProfile.size())));
    if (!profile.scorer.empty()) {
      Compressor of_name = MakeCompressor(profile.scorer);
      compressor.scorer = std::move(of_name.scorer);
      compressor.refresh = of_name.refresh;
    }
    compressor.residual = profile.residual;
    compressor.layers = std::move(profile.layers);
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
