#include "cli/model_arguments.h"

#include <charconv>

#include "base/error.h"
#include "model/gguf_file.h"
#include "model/params.h"

namespace vericache {

ModelShape ShapeOfFile(const std::string& path) {
  const GgufFile file(path);
  const ModelParams params = ReadParams(file);
  ModelShape shape{.name = params.name,
                   .layers = params.layers,
                   .heads = params.heads,
                   .kv_heads = params.kv_heads,
                   .head_dim = params.head_dim};
  for (const GgufFile::Tensor& tensor : file.tensors()) {
    shape.weights += tensor.size;
    // A row of the embedding is looked up, not multiplied, unless it is the output too.
    if (tensor.name != "token_embd.weight" || file.Find("output.weight") == nullptr) {
      double elements = 1.0;
      for (const std::int64_t side : tensor.shape) {
        elements *= static_cast<double>(side);
      }
      shape.parameters += elements;
    }
  }
  return shape;
}

void ModelArguments::AddTo(CLI::App& command) {
  command
      .add_option("--device", device, "Known device, or a JSON file such as doctor --json prints")
      ->capture_default_str();
  CLI::Option* named =
      command.add_option("--model-shape", shape, "Known model, such as mistral-24b");
  command.add_option("-m,--model", model, "GGUF file")->excludes(named);
  command.add_option("--context", context, "Tokens in each request's cache")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command
      .add_option("--compression", compression,
                  "c: bytes of the compressed cache over those of the full one")
      ->check(CLI::Range(1e-4, 1.0))
      ->capture_default_str();
  command.add_option("--draft-length", draft_length, "x: tokens drafted in a round, or best")
      ->capture_default_str();
  command
      .add_option("--acceptance", acceptance,
                  "Share of the drafted tokens that is accepted at the draft length, or a JSON "
                  "file: {\"results\": [{\"x\": 8, \"acceptance_length\": 6.5}, ...]}")
      ->capture_default_str();
  command.add_flag("--json", json, "Print JSON");
}

ModelShape ModelArguments::Shape() const {
  if (shape.empty() == model.empty()) {
    throw UserError("one of --model-shape and --model is needed");
  }
  return model.empty() ? FindModelShape(shape) : ShapeOfFile(model);
}

std::optional<int> ModelArguments::DraftLength() const {
  if (draft_length == "best") {
    return std::nullopt;
  }
  int value = 0;
  const char* last = draft_length.data() + draft_length.size();
  const auto [end, error] = std::from_chars(draft_length.data(), last, value);
  if (error != std::errc() || end != last || value < 1 || value > 1024) {
    throw UserError("--draft-length must be from 1 to 1024, or best, not '" + draft_length + "'");
  }
  return value;
}

AcceptanceModel ModelArguments::Acceptance() const {
  return AcceptanceModel::Parse(acceptance, DraftLength().value_or(kPaperDraft));
}

}  // namespace vericache
