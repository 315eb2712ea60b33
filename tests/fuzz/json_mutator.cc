#include "fuzz/json_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace vericache::fuzz {
namespace {

using json = nlohmann::ordered_json;
using Random = std::minstd_rand;

std::size_t Below(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}

// The value and all within it.
std::vector<json*> ValuesOf(json& root) {
  std::vector<json*> values = {&root};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i]->is_structured()) {
      for (json& each : *values[i]) {
        values.push_back(&each);
      }
    }
  }
  return values;
}

json Constant(Random& random) {
  static const std::array<json, 14> constants = {
      json(),          json(true),        json(0),          json(-1),        json(1e300),
      json(INT64_MAX), json(2000),        json(UINT64_MAX), json(INT64_MIN), json(""),
      json("#/a"),     json("^(a?){9}$"), json::array(),    json::object()};
  return constants[Below(random, constants.size())];
}

// Makes more of a value: long texts, long lists, many fields, deep nests.
void Grow(json& value, Random& random) {
  const std::size_t times = std::size_t{1} << Below(random, 12);
  if (value.is_string()) {
    const std::string unit = value.get<std::string>().substr(0, 8);
    std::string text;
    for (std::size_t i = 0; i < times; ++i) {
      text += unit.empty() ? " " : unit;
    }
    value = text;
  } else if (value.is_array() && !value.empty()) {
    const json copy = value[Below(random, value.size())];
    for (std::size_t i = 0; i < times; ++i) {
      value.push_back(copy);
    }
  } else if (value.is_object() && !value.empty() && Below(random, 2) == 0) {
    const json copy =
        *std::next(value.begin(), static_cast<std::ptrdiff_t>(Below(random, value.size())));
    for (std::size_t i = 0; i < times; ++i) {
      value["f" + std::to_string(i)] = copy;
    }
  } else {
    const std::string key = value.is_object() && !value.empty() ? value.begin().key() : "items";
    for (std::size_t i = 0; i < times % 80; ++i) {
      value = Below(random, 2) == 0 ? json::array({value}) : json{{key, value}};
    }
  }
}

void Change(json& root, Random& random) {
  const std::vector<json*> values = ValuesOf(root);
  json& value = *values[Below(random, values.size())];
  const json other = *values[Below(random, values.size())];
  switch (Below(random, 6)) {
    case 0:
      value = Constant(random);
      break;
    case 1:
      value = other;
      break;
    case 2:
      Grow(value, random);
      break;
    case 3:
      if (value.is_structured() && !value.empty()) {
        value.erase(
            std::next(value.begin(), static_cast<std::ptrdiff_t>(Below(random, value.size()))));
      }
      break;
    case 4:
      if (value.is_object() && other.is_object()) {
        value.update(other);
      } else if (value.is_array()) {
        value.push_back(other);
      }
      break;
    default:
      if (value.is_string()) {
        std::string text = value.get<std::string>();
        const std::size_t size = text.size();
        text.resize(size + 16);
        text.resize(
            LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
        value = text;
      } else if (value.is_number()) {
        value = static_cast<std::int64_t>(random()) >> Below(random, 31);
      }
  }
}

}  // namespace

std::size_t MutateJson(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  Random random(seed);
  json root = Below(random, 4) == 0 ? json(json::value_t::discarded)
                                    : json::parse(data, data + size, nullptr, false);
  if (root.is_discarded()) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  Change(root, random);
  const std::string text = root.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > max_size) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace vericache::fuzz
