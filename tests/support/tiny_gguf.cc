#include "support/tiny_gguf.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "gguf.h"
#include "model/score_predictor.h"

namespace vericache {
namespace {

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};

// Collects metadata and tensors and writes them at the end.
class Writer {
 public:
  explicit Writer(unsigned seed) : gguf_(gguf_init_empty()), random_(seed) {
    context_.reset(ggml_init({.mem_size = std::size_t{256} << 20U, .mem_buffer = nullptr}));
  }

  gguf_context* metadata() { return gguf_.get(); }

  // A matrix [in, out] (ggml's order) of normal numbers with the given deviation; the last of the
  // `out` rows may be zero.
  void Matrix(const std::string& name, ggml_type type, std::int64_t in, std::int64_t out,
              float deviation, bool zero_last = false) {
    std::vector<float> values = Normal(in * out, 0.0F, deviation);
    if (zero_last) {
      std::fill(values.end() - in, values.end(), 0.0F);
    }
    ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), type, in, out);
    if (type == GGML_TYPE_F32) {
      std::memcpy(tensor->data, values.data(), ggml_nbytes(tensor));
    } else {
      ggml_quantize_chunk(type, values.data(), tensor->data, 0, out, in, nullptr);
    }
    Add(tensor, name);
  }

  void Vector(const std::string& name, std::int64_t size, float mean, float deviation) {
    Vector(name, Normal(size, mean, deviation));
  }
  void Vector(const std::string& name, const std::vector<float>& values) {
    ggml_tensor* tensor =
        ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, static_cast<std::int64_t>(values.size()));
    std::memcpy(tensor->data, values.data(), ggml_nbytes(tensor));
    Add(tensor, name);
  }

  void Write(const std::filesystem::path& path) {
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), /*only_meta=*/false)) {
      throw std::runtime_error("cannot write " + path.string());
    }
  }

 private:
  std::vector<float> Normal(std::int64_t count, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }
  void Add(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
  }

  std::unique_ptr<gguf_context, FreeGguf> gguf_;
  GgmlContext context_;
  std::mt19937 random_;
};

// The character that GPT-2's byte-level BPE writes a byte as: itself where it is printable, else
// one from U+0100 on. All lie below U+0800.
std::string ByteToken(int byte, int& unprintable) {
  const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
  const int code = printable ? byte : 256 + unprintable++;
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

void WriteByteVocabulary(gguf_context* to) {
  constexpr int kNormal = 1;
  constexpr int kControl = 3;
  std::vector<std::string> tokens;
  int unprintable = 0;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteToken(byte, unprintable));
  }
  tokens.emplace_back("<|im_end|>");
  std::vector<const char*> pointers;
  for (const std::string& token : tokens) {
    pointers.push_back(token.c_str());
  }
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  types.back() = kControl;
  gguf_set_val_str(to, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(to, "tokenizer.ggml.pre", "default");
  gguf_set_arr_str(to, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
  gguf_set_arr_data(to, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_arr_str(to, "tokenizer.ggml.merges", nullptr, 0);
  gguf_set_val_u32(to, "tokenizer.ggml.eos_token_id", 256);
  gguf_set_val_bool(to, "tokenizer.ggml.add_bos_token", false);
  gguf_set_val_str(to, "tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                   "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}");
}

void WriteMetadata(const TinyModel& model, gguf_context* to) {
  const std::string prefix = model.architecture + ".";
  const auto number = [&](const std::string& key, int value) {
    gguf_set_val_u32(to, (prefix + key).c_str(), static_cast<std::uint32_t>(value));
  };
  gguf_set_val_str(to, "general.architecture", model.architecture.c_str());
  gguf_set_val_str(to, "general.name", "tiny");
  if (model.byte_tokens) {
    WriteByteVocabulary(to);
  } else {
    gguf_set_val_str(to, "tokenizer.ggml.model", "no_vocab");
  }
  number("vocab_size", model.vocabulary);
  number("context_length", model.context);
  number("embedding_length", model.embedding);
  number("block_count", model.layers);
  number("feed_forward_length", model.feed_forward);
  number("attention.head_count", model.heads);
  number("attention.head_count_kv", model.kv_heads);
  number("attention.key_length", model.head_dim);
  number("attention.value_length", model.head_dim);
  number("rope.dimension_count", model.head_dim);
  gguf_set_val_f32(to, (prefix + "attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
  gguf_set_val_f32(to, (prefix + "rope.freq_base").c_str(), 10000.0F);
  if (model.rope == TinyRope::kLinear || model.rope == TinyRope::kYarn) {
    gguf_set_val_str(to, (prefix + "rope.scaling.type").c_str(),
                     model.rope == TinyRope::kYarn ? "yarn" : "linear");
    gguf_set_val_f32(to, (prefix + "rope.scaling.factor").c_str(), 4.0F);
    number("rope.scaling.original_context_length", model.context / 4);
  }
  for (const auto& [key, value] : model.integers) {
    gguf_set_val_u32(to, key.c_str(), static_cast<std::uint32_t>(value));
  }
  for (const auto& [key, value] : model.strings) {
    gguf_set_val_str(to, key.c_str(), value.c_str());
  }
}

// Deviations in units of 1 / sqrt(inputs). Large queries and keys make attention pick a few
// positions, so that what comes next depends on the whole context and not on the last token alone.
constexpr float kSharp = 1.8F;
constexpr float kMixing = 1.5F;
constexpr float kOutput = 3.0F;

void WriteLayer(const TinyModel& model, int index, Writer& writer) {
  const std::string block = "blk." + std::to_string(index) + ".";
  const ggml_type type = model.type;
  const ggml_type other = model.other_type.value_or(type);
  const std::int64_t embedding = model.embedding;
  const std::int64_t query = std::int64_t{model.heads} * model.head_dim;
  const std::int64_t key = std::int64_t{model.kv_heads} * model.head_dim;
  const auto unit = [](std::int64_t inputs) {
    return 1.0F / std::sqrt(static_cast<float>(inputs));
  };
  writer.Vector(block + "attn_norm.weight", embedding, 1.0F, 0.1F);
  writer.Matrix(block + "attn_q.weight", type, embedding, query, kSharp * unit(embedding));
  writer.Matrix(block + "attn_k.weight", type, embedding, key, kSharp * unit(embedding));
  writer.Matrix(block + "attn_v.weight", other, embedding, key, unit(embedding));
  writer.Matrix(block + "attn_output.weight", type, query, embedding, kMixing * unit(query));
  if (model.architecture == "qwen2") {
    writer.Vector(block + "attn_q.bias", query, 0.0F, 0.3F);
    writer.Vector(block + "attn_k.bias", key, 0.0F, 0.3F);
    writer.Vector(block + "attn_v.bias", key, 0.0F, 0.3F);
  }
  if (model.architecture == "qwen3") {
    writer.Vector(block + "attn_q_norm.weight", model.head_dim, kSharp, 0.1F);
    writer.Vector(block + "attn_k_norm.weight", model.head_dim, kSharp, 0.1F);
  }
  const std::int64_t ff = model.feed_forward;
  writer.Vector(block + "ffn_norm.weight", embedding, 1.0F, 0.1F);
  writer.Matrix(block + "ffn_gate.weight", type, embedding, ff, kMixing * unit(embedding));
  writer.Matrix(block + "ffn_up.weight", type, embedding, ff, unit(embedding));
  writer.Matrix(block + "ffn_down.weight", other, ff, embedding, kMixing * unit(ff));
}

const std::filesystem::path& ProcessFolder() {
  static const TempDir folder;
  return folder.path();
}

}  // namespace

std::string TinyModel::Describe() const {
  std::ostringstream text;
  text << architecture << ' ' << ggml_type_name(type);
  if (other_type) {
    text << '+' << ggml_type_name(*other_type);
  }
  text << ' ' << layers << 'x' << embedding << " heads " << heads << '/' << kv_heads << 'x'
       << head_dim << " ff " << feed_forward << " vocabulary " << vocabulary << " context "
       << context << " rope " << static_cast<int>(rope) << (tied ? " tied" : "")
       << (byte_tokens ? " bytes" : "") << (never_last_token ? " never-last" : "") << " seed "
       << seed;
  for (const auto& [key, value] : integers) {
    text << ' ' << key << '=' << value;
  }
  for (const auto& [key, value] : strings) {
    text << ' ' << key << '=' << value;
  }
  return text.str();
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "vericache-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder");
  }
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteTinyGguf(const TinyModel& model, const std::filesystem::path& path) {
  Writer writer(model.seed);
  WriteMetadata(model, writer.metadata());
  const float output = kOutput / std::sqrt(static_cast<float>(model.embedding));
  writer.Matrix("token_embd.weight", model.type, model.embedding, model.vocabulary,
                model.tied ? output : 1.0F);
  writer.Vector("output_norm.weight", model.embedding, 1.0F, 0.1F);
  if (!model.tied) {
    writer.Matrix("output.weight", model.other_type.value_or(model.type), model.embedding,
                  model.vocabulary, output, model.never_last_token);
  }
  if (model.rope == TinyRope::kFactors) {
    std::vector<float> factors;  // as Llama 3: the slow pairs turn slower still
    for (int i = 0; i < model.head_dim / 2; ++i) {
      factors.push_back(i < model.head_dim / 4 ? 1.0F : 8.0F);
    }
    writer.Vector("rope_freqs.weight", factors);
  }
  for (int i = 0; i < model.layers; ++i) {
    WriteLayer(model, i, writer);
  }
  writer.Write(path);
}

std::filesystem::path TinyGgufPath(const TinyModel& model) {
  static std::map<std::string, std::filesystem::path> written;
  const auto [found, is_new] = written.try_emplace(model.Describe());
  if (is_new) {
    found->second = ProcessFolder() / (std::to_string(written.size()) + ".gguf");
    WriteTinyGguf(model, found->second);
  }
  return found->second;
}

const Model& LoadTiny(const TinyModel& model) {
  static std::map<std::string, std::unique_ptr<Model>> loaded;
  std::unique_ptr<Model>& entry = loaded[model.Describe()];
  if (!entry) {
    entry = std::make_unique<Model>(TinyGgufPath(model), ModelOptions{});
  }
  return *entry;
}

std::string TinyPredictor(const ModelParams& params, unsigned seed) {
  constexpr int kHidden = 8;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.3F);
  const auto numbers = [&](int count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::ranges::generate(values, [&] { return normal(random); });
    return values;
  };
  std::vector<PredictorValues> layers;
  for (int i = 0; i < params.layers; ++i) {
    layers.push_back({.up = numbers(kHidden * params.embedding),
                      .up_bias = numbers(kHidden),
                      .down = numbers(params.kv_heads * kHidden),
                      .down_bias = numbers(params.kv_heads)});
  }
  return PredictorGguf("tiny", layers);
}

}  // namespace vericache
