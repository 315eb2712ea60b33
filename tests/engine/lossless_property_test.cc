// The contract: whatever the model, compressor, draft length, batch, chunk and thread count, the
// tokens and the logits behind them are those of full-cache decoding, bit for bit.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "compressor/profile.h"
#include "gtest/gtest.h"
#include "rapidcheck.h"
#include "rapidcheck/gtest.h"
#include "support/engine_runs.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr std::array kCompressors = {"none",
                                     "streamingllm",
                                     "snapkv",
                                     "expectedattention",
                                     "expectedattention:future=9,recent=3+kivi2",
                                     "snapkv:refresh=0.5",
                                     "snapkv:refresh=1,refresh-queries=3+kivi4",
                                     "expectedattention:refresh=0.3",
                                     "kvzip:chunk=200",
                                     "kvzip:recent=4,refresh=0.5+kivi4",
                                     "kvzap",
                                     "kvzap+kivi4",
                                     "h2o",
                                     "h2o:recent=0+kivi2",
                                     "kivi4",
                                     "kivi2",
                                     "q8",
                                     "q4",
                                     "turboquant4",
                                     "rotatekv2",
                                     "snapkv+split",
                                     "snapkv:refresh=0.5+split:high=kivi4,low=kivi2",
                                     "split:high=kivi4,low=turboquant2,share=0.5",
                                     "kvquant4",
                                     "snapkv+kvquant3",
                                     "streamingllm:sinks=1+k=kvquant2,v=kvquant3",
                                     "h2o+kvquant2:outliers=0.03,residual=20",
                                     "snapkv:refresh=0.5+split:high=kvquant4,low=kvquant2",
                                     "k=q8r,v=q4r",
                                     "k=q8,v=kivi2",
                                     "snapkv+kivi4",
                                     "snapkv+turboquant3",
                                     "streamingllm+k=kivi2r,v=turboquant2",
                                     "snapkv:window=5,kernel=3+k=kivi4,v=q4",
                                     "streamingllm:sinks=1+kivi2:residual=32"};

// The network that the name wants, written into `folder`.
std::string WithNetwork(const std::string& name, const Model& model,
                        const std::filesystem::path& folder) {
  const std::string method = "kvzap";
  if (!name.starts_with(method)) {
    return name;
  }
  const std::string path = (folder / "network.gguf").string();
  std::ofstream(path, std::ios::binary) << TinyPredictor(model.params());
  return method + ":recent=7,network=" + path + name.substr(method.size());
}

// Uniform over [first, end) however small RapidCheck's size is; shrinks towards `first`.
template <typename T>
T Within(T first, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(first, end));
}

TinyModel AnyModel() {
  TinyModel model;
  model.architecture = *rc::gen::element<std::string>("llama", "qwen2", "qwen3");
  model.type = *rc::gen::element(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                 GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                                 GGML_TYPE_IQ4_NL, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,
                                 GGML_TYPE_Q5_K, GGML_TYPE_Q6_K);
  if (*rc::gen::arbitrary<bool>()) {
    model.other_type = *rc::gen::element(GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_BF16);
  }
  model.layers = Within(1, 4);
  // heads * head_dim and embedding stay multiples of 256, as K-quants want.
  const int shape = Within(0, 4);
  model.heads = std::array{4, 8, 8, 4}[static_cast<std::size_t>(shape)];
  model.kv_heads = std::array{2, 2, 8, 1}[static_cast<std::size_t>(shape)];
  model.head_dim = 256 / model.heads;
  model.feed_forward = *rc::gen::element(256, 256, 256, 512);
  model.vocabulary = *rc::gen::element(256, 333, 1000);
  model.tied = *rc::gen::arbitrary<bool>();
  model.rope = model.architecture == "llama"
                   ? *rc::gen::element(TinyRope::kPlain, TinyRope::kYarn, TinyRope::kFactors)
                   : *rc::gen::element(TinyRope::kPlain, TinyRope::kLinear);
  return model;
}

// One token, a few, or enough for packed groups beyond KIVI's residual and for a second chunk of
// attention.
int AnyLength() {
  switch (Within(0, 3)) {
    case 0:
      return Within(1, 40);
    case 1:
      return Within(150, 400);
    default:
      return Within(400, 700);
  }
}

std::vector<Prompt> AnyPrompts(int vocabulary, int most_tokens) {
  std::vector<Prompt> prompts;
  const int count = Within(1, 6);
  const auto seed = Within(0U, 1000U);
  for (int i = 0; i < count; ++i) {
    prompts.push_back(
        {.id = std::to_string(i),
         .tokens = RandomTokens(AnyLength(), vocabulary, seed * 8 + static_cast<unsigned>(i)),
         .max_tokens = Within(0, 4) == 0 ? Within(1, 5) : Within(5, most_tokens + 1)});
    if (Within(0, 4) == 0) {
      prompts.back().draft_length = Within(0, 5);
    }
  }
  return prompts;
}

SamplingOptions AnySampling() {
  return {.temperature = *rc::gen::element(0.0, 0.1, 0.7, 1.0, 2.0),
          .top_k = *rc::gen::element(0, 0, 1, 20),
          .top_p = *rc::gen::element(1.0, 0.9, 0.3),
          .min_p = *rc::gen::element(0.0, 0.05),
          .presence_penalty = *rc::gen::element(0.0, 0.0, 1.5),
          .frequency_penalty = *rc::gen::element(0.0, 0.0, -0.5, 0.3),
          .seed = Within<std::uint64_t>(0, 1000)};
}

// A profile of any keep ratios and formats, written into `folder`.
std::string AnyProfile(int layers, const std::filesystem::path& folder) {
  const auto any = [] {
    return kNumberFormats[Within<std::size_t>(0, kNumberFormats.size())].format;
  };
  Profile profile{.model = "tiny",
                  .scorer = *rc::gen::element("", "snapkv", "streamingllm"),
                  .residual = *rc::gen::element(0, 40),
                  .layers = {}};
  for (int i = 0; i < layers; ++i) {
    LayerRecipe& layer = profile.layers.emplace_back();
    layer.keep = *rc::gen::element(0.05, 0.3, 1.0);
    if (Within(0, 4) > 0) {
      layer.format = KvFormat{any(), any()};
      if (Within(0, 3) == 0) {
        layer.split = Split{.low = {any(), any()}, .high_share = 0.4};
      }
    }
  }
  const std::filesystem::path path = folder / "profile.json";
  std::ofstream(path) << ToText(profile);
  return path.string();
}

RC_GTEST_PROP(LosslessProperty, EqualsFull, ()) {
  const TinyModel tiny = AnyModel();
  const TempDir folder;
  EngineOptions options;
  options.compressor = kCompressors[Within<std::size_t>(0, kCompressors.size())];
  if (Within(0, 4) == 0) {
    options.compressor = "profile:" + AnyProfile(tiny.layers, folder.path());
  }
  options.keep = *rc::gen::element(0.02, 0.05, 0.2, 0.5, 1.0);
  options.draft_length = *rc::gen::element(1, 2, 4, 7, 16, 40);
  options.batch = Within(1, 6);
  options.prefill_chunk = *rc::gen::element(1, 7, 32, 100, 512);
  int most_tokens = 40;
  if (Within(0, 8) == 0) {
    // ggml's threads spin at their barriers: slow where cores are shared, so these are short.
    options.threads = 2;
    options.prefill_chunk = std::max(options.prefill_chunk, 100);
    most_tokens = 12;
  }
  options.fast_memory = kAmple;
  const int ends = *rc::gen::element(0, 150, 40);  // one token in so many ends a text
  options.is_end = [ends](TokenId token) { return ends > 0 && Raw(token) % ends == ends - 1; };
  const Model& model = LoadTiny(tiny);
  options.compressor = WithNetwork(options.compressor, model, folder.path());
  std::vector<Prompt> prompts = AnyPrompts(tiny.vocabulary, most_tokens);
  if (Within(0, 2) == 0) {
    for (Prompt& prompt : prompts) {
      prompt.sampling = AnySampling();
    }
  }
  options.policy =
      *rc::gen::element(Policy::kVeriCache, Policy::kAuto, Policy::kLockstep, Policy::kFull);
  options.adaptive_draft = Within(0, 4) == 0;
  switch (Within(0, 3)) {
    case 0:
      break;  // read in place
    case 1:
      options.link_bandwidth = *rc::gen::element(2e7, 2e8, 2e9);
      break;
    default:
      options.full_store.folder = folder.path();
  }
  if (Within(0, 3) == 0) {  // what an earlier request of the run, or the run before, left
    options.prefixes = MakePrefixStore(
        Within(0, 2) == 0 ? "memory:64MiB" : "disk:" + (folder.path() / "prefixes").string());
    for (std::size_t i = 1; i < prompts.size(); ++i) {
      if (Within(0, 2) == 0) {  // begins as another one of the batch
        const std::vector<TokenId>& other = prompts[Within<std::size_t>(0, i)].tokens;
        std::vector<TokenId>& tokens = prompts[i].tokens;
        std::copy_n(other.begin(),
                    std::min({other.size(), tokens.size(), Within<std::size_t>(1, 700)}),
                    tokens.begin());
      }
    }
    if (Within(0, 2) == 0) {
      RunEngine(model, options, {prompts[0]});
    }
  }
  options.turn = Within(1, 12);
  const bool scarce = *rc::gen::arbitrary<bool>();
  if (scarce) {  // for any one of them, up to nearly all: requests wait, or take turns
    Bytes most;
    Bytes all;
    for (const Prompt& prompt : prompts) {
      const Bytes need = FastMemoryNeed(model, options, prompt);
      most = std::max(most, need);
      all += need;
    }
    options.fast_memory = most + Bytes{Within<std::uint64_t>(0, (all - most).count + 1)};
  }

  std::ostringstream lengths;
  for (const Prompt& prompt : prompts) {
    lengths << ' ' << prompt.tokens.size() << '+' << prompt.max_tokens << " T "
            << prompt.sampling.temperature << " k " << prompt.sampling.top_k << " p "
            << prompt.sampling.top_p << " seed " << prompt.sampling.seed;
  }
  RC_LOG() << tiny.Describe() << "\n"
           << options.compressor << " keep " << options.keep << " draft " << options.draft_length
           << " batch " << options.batch << " threads " << options.threads << " chunk "
           << options.prefill_chunk << " prompts" << lengths.str() << " ends " << ends
           << (scarce ? " scarce" : "") << " " << Name(options.policy)
           << (options.adaptive_draft ? " adaptive" : "") << " link "
           << options.link_bandwidth.value_or(0) << (options.full_store.folder ? " disk" : "")
           << (options.prefixes ? " prefixes" : "") << "\n";

  Engine engine(model, options);
  const std::vector<Result> results = engine.Run(prompts);
  RC_ASSERT(Difference(RunFull(model, prompts, options.is_end), results) == "");
  RC_ASSERT(engine.fast_memory_peak() <= options.fast_memory);

  const Acceptance acceptance = AcceptanceOf(results);
  RC_TAG(options.compressor.substr(0, options.compressor.find(folder.path().string())));
  RC_CLASSIFY(acceptance.drafted > 0 && acceptance.accepted == acceptance.drafted, "all accepted");
  RC_CLASSIFY(acceptance.accepted > 0 && acceptance.accepted < acceptance.drafted, "some accepted");
  RC_CLASSIFY(acceptance.drafted > 0 && acceptance.accepted == 0, "none accepted");
}

}  // namespace
}  // namespace vericache
