#include "cli/weights_argument.h"

#include "base/error.h"

namespace vericache {

void WeightsArgument::AddTo(CLI::App& command) {
  command
      .add_option("--weights", text,
                  "Number format of the weights in memory: as-is (the file's own), q8_0 or bf16. "
                  "Other formats can be faster, and take other memory; the same output under every "
                  "policy")
      ->capture_default_str();
}

std::optional<ggml_type> WeightsArgument::type() const {
  if (text == "as-is") {
    return std::nullopt;
  }
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_BF16}) {
    if (text == ggml_type_name(type)) {
      return type;
    }
  }
  throw UserError("unknown --weights '" + text + "'; known are as-is, q8_0, bf16");
}

}  // namespace vericache
