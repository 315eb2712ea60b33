// Parity with kvpress on tiny random models: scores to float error, and the same kept positions.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attention/kernel.h"
#include "gtest/gtest.h"
#include "support/kvpress_fixture.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

// The order of additions, and what the kernel's products lose.
const double kError = 1e-4 + 10.0 * SelectKernel().product_error;

TinyModel ModelOf(const std::string& architecture) {
  return {.architecture = architecture,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .embedding = 64,
          .feed_forward = 64};
}

// Equal, but for positions whose scores are as good as tied with the last kept one.
void ExpectSamePositions(const std::vector<double>& scores, const std::vector<int>& expected,
                         const std::vector<int>& actual, const std::string& where) {
  double cut = std::numeric_limits<double>::infinity();
  for (const int position : expected) {
    cut = std::min(cut, scores[static_cast<std::size_t>(position)]);
  }
  std::vector<int> different;
  std::ranges::set_symmetric_difference(expected, actual, std::back_inserter(different));
  for (const int position : different) {
    EXPECT_NEAR(scores[static_cast<std::size_t>(position)], cut, kError * cut)
        << where << " position " << position;
  }
  EXPECT_EQ(expected.size(), actual.size()) << where;
}

// Our name of kvpress's method; `chunk` is KVzip's.
std::string NameOf(const std::string& method, int chunk) {
  if (method == "kvzip") {
    return "kvzip:recent=0,chunk=" + std::to_string(chunk);
  }
  return method == "observedattention" ? "h2o" : method;
}

// KVzip's prompts with characters for tokens, without a chat template.
RepeatPrompt RepeatInCharacters() {
  const auto tokens = [](std::string_view text) {
    std::vector<TokenId> each;
    for (const char c : text) {
      each.push_back(TokenId{c});
    }
    return each;
  };
  return {.first = tokens("\n\nRepeat the previous context exactly."),
          .next = tokens("\n\nRepeat the part of the previous context exactly, starting with"),
          .suffix = tokens("\n")};
}

TEST(Kvpress, SameScoresAndPositionsOnTinyModels) {
  const nlohmann::json fixture = ReadReference("kvpress_tiny.json");
  const std::vector<TokenId> tokens = TokensOf(fixture);
  const int count = KeptPositions(static_cast<int>(tokens.size()), fixture.at("keep"));
  std::map<std::string, int> compared;
  for (const std::string architecture : {"llama", "qwen2"}) {
    const Model& model = LoadTiny(ModelOf(architecture));
    for (const auto& each : fixture.at("cases")) {
      const std::string method = each.at("method");
      if (each.at("architecture") != architecture) {
        continue;
      }
      const Compressor compressor = MakeCompressor(NameOf(method, fixture.at("chunk")));
      const ScoredPrompt prompt(model, tokens, compressor.needs(), RepeatInCharacters());
      for (int layer = 0; layer < model.params().layers; ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        const LayerScores scores = prompt.Scores(*compressor.scorer, LayerId{layer});
        const LayerSelection kept = Select(scores, count);
        for (std::size_t head = 0; head < scores.size(); ++head) {
          const std::string where = architecture + " " + method + " layer " + std::to_string(layer);
          const std::vector<double> expected = each.at("scores").at(at).at(head);
          for (std::size_t i = 0; method != "streamingllm" && i < expected.size(); ++i) {
            if (scores[head][i] < kSurelyKept) {
              // What H2O sums up kvpress divides by the queries that see the position.
              const double divided = method == "observedattention"
                                         ? 1.0 / static_cast<double>(expected.size() - i)
                                         : 1.0;
              EXPECT_NEAR(static_cast<double>(scores[head][i]) * divided, expected[i],
                          kError * expected[i])
                  << where << " position " << i;
            }
          }
          ++compared[method];
          if (method == "observedattention") {
            continue;
          }
          ExpectSamePositions(expected, each.at("kept").at(at).at(head), kept[head], where);
        }
      }
    }
  }
  EXPECT_EQ(compared, (std::map<std::string, int>{{"expectedattention", 8},
                                                  {"kvzip", 8},
                                                  {"observedattention", 8},
                                                  {"snapkv", 8},
                                                  {"streamingllm", 8}}));
}

}  // namespace
}  // namespace vericache
