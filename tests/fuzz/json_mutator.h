// Changes of JSON that keep it JSON, so that a fuzzer gets past the parser to what reads its
// values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vericache::fuzz {

// As LLVMFuzzerCustomMutator: changes `data`, of `size` bytes, in place, to at most `max_size`
// bytes; the new size. What is not JSON is changed byte by byte.
std::size_t MutateJson(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed);

}  // namespace vericache::fuzz
