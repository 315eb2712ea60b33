// Parity with kvpress on a real model and a real prompt. Our products round each activation to 8
// bits, kvpress's ran in float32, so near the cut some positions change places.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "support/kvpress_fixture.h"
#include "support/real_text.h"

namespace vericache {
namespace {

TEST(RealModelKvpress, NearlyTheSamePositions) {
  const std::string path = EnvironmentPath("VERICACHE_TEST_MODEL");
  if (path.empty()) {
    GTEST_SKIP() << "VERICACHE_TEST_MODEL is not set";
  }
  const Model model(path, {});
  const nlohmann::json fixture = ReadReference("kvpress_real.json");
  const std::vector<TokenId> tokens = TokensOf(fixture);
  const int count = KeptPositions(static_cast<int>(tokens.size()), fixture.at("keep"));
  const std::vector<int> layers = fixture.at("layers");
  if (layers.back() >= model.params().layers) {
    GTEST_SKIP() << "the fixture is of another model";
  }
  const ScoredPrompt prompt(model, tokens, {.query_window = 32, .query_statistics = true});
  for (const auto& each : fixture.at("cases")) {
    const std::string method = each.at("method");
    if (method == "observedattention") {
      continue;  // divided by the queries that see a position, which H2O's sums are not
    }
    const Compressor compressor = MakeCompressor(method);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const LayerSelection expected = each.at("kept").at(i);
      const LayerSelection kept =
          Select(prompt.Scores(*compressor.scorer, LayerId{layers[i]}), count);
      const double overlap = Overlap(expected, kept);
      std::printf("%s, layer %d: %.3f of the kept positions are the same\n", method.c_str(),
                  layers[i], overlap);
      EXPECT_GE(overlap, method == "streamingllm" ? 1.0 : 0.93) << method << ' ' << layers[i];
    }
  }
}

}  // namespace
}  // namespace vericache
