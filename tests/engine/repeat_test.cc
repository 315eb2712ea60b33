#include "model/repeat.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

std::vector<TokenId> Bytes256(std::string_view text, bool end) {
  std::vector<TokenId> tokens;
  if (end) {
    tokens.push_back(TokenId{256});
  }
  // As the vocabulary has them: GPT-2's order is that of the bytes here.
  for (const char c : text) {
    tokens.push_back(TokenId{c});
  }
  return tokens;
}

TEST(RepeatPrompt, HasTheAuthorsWordsAndTheTurnOfTheModelsTemplate) {
  const Tokenizer tokenizer(TinyGgufPath({.vocabulary = 257, .byte_tokens = true}));
  const RepeatPrompt prompt = RepeatPromptOf(tokenizer);
  EXPECT_EQ(prompt.first, Bytes256("\n\nRepeat the previous context exactly.", false));
  EXPECT_EQ(prompt.next,
            Bytes256("\n\nRepeat the part of the previous context exactly, starting with", false));
  EXPECT_GE(prompt.suffix.size(), 2U);
  EXPECT_EQ(prompt.suffix[0], TokenId{256});
  EXPECT_EQ(prompt.suffix[1], TokenId{'\n'});
}

TEST(RecordRepetition, LeavesTheFullCacheAsItWas) {
  const TinyModel tiny;
  const Model& model = LoadTiny(tiny);
  Transformer transformer(model, 1);
  const std::vector<TokenId> tokens = RandomTokens(150, tiny.vocabulary, 3);
  PagePool pool({std::numeric_limits<std::uint64_t>::max()});
  KvCache full(pool, PageKind::kResident, model.params().geometry(), KvFormat{});
  ASSERT_TRUE(full.Extend(150));
  std::vector<Position> positions;
  for (int i = 0; i < 150; ++i) {
    positions.push_back(Position{i});
  }
  const AttentionTask task{.cache = &full, .first_row = 0, .rows = 150};
  transformer.Forward(
      {.tokens = tokens, .positions = positions, .outputs = {}, .tasks = {&task, 1}});
  const std::vector<std::byte> before = full.Saved();
  Taps taps;
  RecordRepetition(transformer, full, tokens, {}, /*chunk=*/60, /*rows=*/32, taps);
  EXPECT_EQ(full.Saved(), before);
  EXPECT_EQ(full.slots(LayerId{0}), 150);
  for (int layer = 0; layer < tiny.layers; ++layer) {
    for (int head = 0; head < tiny.kv_heads; ++head) {
      const std::vector<float> weights = taps.repeated->weights(LayerId{layer}, head);
      EXPECT_EQ(weights.size(), 150U);
      EXPECT_GT(*std::ranges::max_element(weights), 0.0F);
      EXPECT_TRUE(std::ranges::all_of(weights, [](float w) { return w >= 0.0F && w < 1.001F; }));
    }
  }
}

}  // namespace
}  // namespace vericache
