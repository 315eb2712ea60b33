// Parity with kvpress on tiny random models: scores to float error, and the same kept positions.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "support/kvpress_fixture.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr double kError = 1e-4;

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

TEST(Kvpress, SameScoresAndPositionsOnTinyModels) {
  const nlohmann::json fixture = ReadReference("kvpress_tiny.json");
  const std::vector<TokenId> tokens = TokensOf(fixture);
  const int count = KeptPositions(static_cast<int>(tokens.size()), fixture.at("keep"));
  std::map<std::string, int> compared;
  for (const std::string architecture : {"llama", "qwen2"}) {
    const Model& model = LoadTiny(ModelOf(architecture));
    for (const auto& each : fixture.at("cases")) {
      const std::string method = each.at("method");
      const auto names = CompressorNames();
      if (each.at("architecture") != architecture || std::ranges::count(names, method) == 0) {
        continue;
      }
      const Compressor compressor = MakeCompressor(method);
      const ScoredPrompt prompt(model, tokens, compressor.needs());
      for (int layer = 0; layer < model.params().layers; ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        const LayerScores scores = prompt.Scores(*compressor.scorer, LayerId{layer});
        const LayerSelection kept = Select(scores, count);
        for (std::size_t head = 0; head < scores.size(); ++head) {
          const std::string where = architecture + " " + method + " layer " + std::to_string(layer);
          const std::vector<double> expected = each.at("scores").at(at).at(head);
          for (std::size_t i = 0; method != "streamingllm" && i < expected.size(); ++i) {
            if (scores[head][i] < kSurelyKept) {
              EXPECT_NEAR(static_cast<double>(scores[head][i]), expected[i], kError * expected[i])
                  << where << " position " << i;
            }
          }
          ExpectSamePositions(expected, each.at("kept").at(at).at(head), kept[head], where);
          ++compared[method];
        }
      }
    }
  }
  EXPECT_EQ(compared, (std::map<std::string, int>{
                          {"expectedattention", 8}, {"snapkv", 8}, {"streamingllm", 8}}));
}

}  // namespace
}  // namespace vericache
