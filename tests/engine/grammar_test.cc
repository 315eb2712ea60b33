// Texts that a grammar describes: what comes out follows it, and is what the full cache gives.
#include "model/grammar.h"

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

const TinyModel kTiny{.vocabulary = 257, .byte_tokens = true};

const Tokenizer& Vocabulary() {
  static const Tokenizer tokenizer(TinyGgufPath(kTiny));
  return tokenizer;
}
TokenId Byte(char byte) { return Vocabulary().Encode(std::string(1, byte), false).back(); }
TokenId End() {
  for (int token = 0; token < 257; ++token) {
    if (Vocabulary().IsEnd(TokenId{token})) {
      return TokenId{token};
    }
  }
  return TokenId{-1};
}

std::string TextOf(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) {
    text += Vocabulary().Piece(token);
  }
  return text;
}

TEST(Grammar, AllowsWhatItsRulesSay) {
  Grammar grammar(Vocabulary(), "root ::= \"a\" [0-9]+");
  EXPECT_TRUE(grammar.Allows(Byte('a')));
  EXPECT_FALSE(grammar.Allows(Byte('b')));
  EXPECT_FALSE(grammar.Accept(Byte('b')));
  EXPECT_TRUE(grammar.Accept(Byte('a')));
  EXPECT_FALSE(grammar.Allows(End())) << "the text is not complete";
  const Grammar before = grammar;
  EXPECT_TRUE(grammar.Accept(Byte('7')));
  EXPECT_TRUE(grammar.Allows(End()));
  EXPECT_FALSE(before.Allows(End())) << "a copy goes on by itself";
  std::vector<float> logits(257, 1.0F);
  grammar.Mask(logits);
  for (int token = 0; token < 257; ++token) {
    EXPECT_EQ(logits[static_cast<std::size_t>(token)] == 1.0F, grammar.Allows(TokenId{token}));
  }
  EXPECT_FALSE(grammar.Allows(TokenId{257}));
  EXPECT_THROW(Grammar(Vocabulary(), "root ::= missing"), UserError);
  EXPECT_THROW(Grammar(Vocabulary(), ""), UserError);
}

// Under every policy, compressor and temperature: the same tokens as the full cache's, all of them
// by the rules.
TEST(Grammar, DraftsAndVerifiesAgreeOnIt) {
  const Model& model = LoadTiny(kTiny);
  const auto list = std::make_shared<const Grammar>(
      Vocabulary(),
      "root ::= \"[\" item (\", \" item)* \"]\"\nitem ::= [a-f] [0-9]{1,3} | \"true\"");
  std::vector<Prompt> prompts;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back({.id = std::to_string(i),
                       .tokens = RandomTokens(60 + 30 * i, 256, static_cast<unsigned>(i)),
                       .max_tokens = 60,
                       .sampling = {.temperature = i < 2 ? 0.0 : 1.0,
                                    .presence_penalty = i % 2 == 1 ? 0.5 : 0.0,
                                    .seed = 7},
                       .grammar = list});
  }
  const auto is_end = [](TokenId token) { return Vocabulary().IsEnd(token); };
  const std::vector<Result> full = RunFull(model, prompts, is_end);
  for (const Result& result : full) {
    Grammar rules = *list;
    for (const TokenId token : result.tokens) {
      ASSERT_TRUE(rules.Accept(token)) << TextOf(result.tokens);
    }
    EXPECT_GT(result.tokens.size(), 3U);
  }
  for (const char* compressor : {"none", "kivi2", "snapkv+kivi4"}) {
    for (const Policy policy : {Policy::kVeriCache, Policy::kAuto, Policy::kLockstep}) {
      EngineOptions options = VeriCacheOptions(compressor, 0.3, 6);
      options.policy = policy;
      options.batch = 3;
      options.is_end = is_end;
      const std::vector<Result> results = RunEngine(model, options, prompts);
      EXPECT_EQ(Difference(full, results), "") << compressor;
      EXPECT_GT(AcceptanceOf(results).accepted, 0);
    }
  }
  // By rejection sampling it is another text, by the same rules.
  for (Prompt& prompt : prompts) {
    prompt.sampling.rejection = true;
  }
  EngineOptions options = VeriCacheOptions("kivi2", 1.0, 6);
  options.is_end = is_end;
  for (const Result& result : RunEngine(model, options, prompts)) {
    Grammar rules = *list;
    for (const TokenId token : result.tokens) {
      ASSERT_TRUE(rules.Accept(token)) << TextOf(result.tokens);
    }
  }
}

}  // namespace
}  // namespace vericache
