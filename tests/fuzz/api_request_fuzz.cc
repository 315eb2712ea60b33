// The bodies of requests: whatever they say, they are taken or refused with an ApiError, and so are
// the grammars that they ask for. The first byte says what the rest is a body of.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/json_text.h"
#include "fuzz/json_mutator.h"
#include "llama.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/api_request.h"

namespace vericache {
namespace {

// As Completions goes on with it, up to where a model is needed.
void Use(const ApiRequest& request) {
  if (request.chat) {
    MessagesOf(request);
  }
  // libllama's part of Grammar; without a vocabulary it knows no tokens by name.
  const std::string rules = GrammarOf(request);
  if (!rules.empty()) {
    const std::unique_ptr<llama_sampler, decltype(&llama_sampler_free)> sampler(
        llama_sampler_init_grammar(nullptr, rules.c_str(), "root"), llama_sampler_free);
  }
}

void Read(char kind, std::string_view body) {
  switch (kind) {
    case 'c':
      Use(ParseCompletion(body));
      break;
    case 't':
      ParseTokenize(body);
      break;
    case 'd':
      ParseDetokenize(body);
      break;
    case 'a':
      CallsOf(std::string(body));
      break;
    default:
      Use(ParseChat(body));
  }
}

}  // namespace
}  // namespace vericache

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  stderr = std::fopen("/dev/null", "w");  // of libllama and the converter; not of the fuzzer
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    vericache::Read(text.front(), text.substr(1));
  } catch (const vericache::ApiError& error) {
    if (error.status() != 400) {
      std::abort();
    }
    vericache::Dump(error.ToJson());
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  if (size == 0) {
    return 0;
  }
  return 1 + vericache::fuzz::MutateJson(data + 1, size - 1, max_size - 1, seed);
}
