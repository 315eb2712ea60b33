#include "compressor/kvquant_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kZero = 128;  // the byte of level 0

// Six digits are more than half precision holds.
std::string Text(const std::vector<float>& numbers) {
  std::string text;
  for (const float number : numbers) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.6g", static_cast<double>(number));
    text += (text.empty() ? "" : ",") + std::string(digits.data());
  }
  return "[" + text + "]";
}

std::string Text(const KvQuantLevelSet& set) {
  Json levels = Json::array();
  for (std::size_t i = 0; i < set.size(); ++i) {
    Json& of_bits = levels.emplace_back(Json::array());
    const std::size_t count = std::size_t{1} << (i + kKvQuantLeastBits);
    for (std::size_t code = 0; code < count; ++code) {
      of_bits.push_back(set[i][code] - kZero);
    }
  }
  return levels.dump();
}

KvQuantLevelSet LevelsOf(const Json& levels) {
  KvQuantLevelSet set{};
  for (std::size_t i = 0; i < set.size(); ++i) {
    const auto of_bits = levels.at(i).get<std::vector<int>>();
    if (of_bits.size() != std::size_t{1} << (i + kKvQuantLeastBits) ||
        !std::ranges::is_sorted(of_bits) || of_bits.front() < 1 - kZero ||
        of_bits.back() >= kZero) {
      throw UserError("levels are not 4, 8 and 16 ascending numbers from -127 to 127");
    }
    std::ranges::transform(of_bits, set[i].begin(),
                           [](int level) { return static_cast<std::uint8_t>(level + kZero); });
  }
  return set;
}

std::vector<float> RangesOf(const Json& layer, const char* key, const CacheGeometry& geometry) {
  auto numbers = layer.at(key).get<std::vector<float>>();
  if (numbers.size() != static_cast<std::size_t>(geometry.kv_heads * geometry.head_dim)) {
    throw UserError("it has ranges of " + std::to_string(numbers.size()) +
                    " key channels; this model has " +
                    std::to_string(geometry.kv_heads * geometry.head_dim));
  }
  if (!std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); })) {
    throw UserError("it has ranges that are not numbers");
  }
  return numbers;
}

}  // namespace

std::string CalibrationFileOf(const std::string& model_path) {
  return model_path + ".kvquant.json";
}

std::string ToText(const KvQuantCalibration& calibration) {
  std::string text = "{\"model\": " + Json(calibration.model).dump() + ", \"layers\": [";
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    const KvQuant& layer = calibration.layers[i];
    text += std::string(i == 0 ? "\n  " : ",\n  ") + "{\"key_levels\": " + Text(layer.key_levels) +
            ", \"value_levels\": " + Text(layer.value_levels) +
            ", \"key_centers\": " + Text(layer.key_centers) +
            ", \"key_halves\": " + Text(layer.key_halves) + "}";
  }
  return text + "\n]}\n";
}

KvQuantCalibration ReadCalibration(const std::string& path, const CacheGeometry& geometry) {
  std::ifstream file(path);
  if (!file) {
    throw UserError("cannot read the calibration " + path +
                    "; vericache calibrate kvquant -m MODEL --text FILE --out " + path +
                    " makes one");
  }
  try {
    const Json json = Json::parse(file);
    KvQuantCalibration calibration{.model = json.value("model", ""), .layers = {}};
    for (const Json& layer : json.at("layers")) {
      KvQuant& kvquant = calibration.layers.emplace_back();
      kvquant.key_levels = LevelsOf(layer.at("key_levels"));
      kvquant.value_levels = LevelsOf(layer.at("value_levels"));
      kvquant.key_centers = RangesOf(layer, "key_centers", geometry);
      kvquant.key_halves = RangesOf(layer, "key_halves", geometry);
    }
    if (calibration.layers.size() != static_cast<std::size_t>(geometry.layers)) {
      throw UserError("it is for " + std::to_string(calibration.layers.size()) +
                      " layers; this model has " + std::to_string(geometry.layers));
    }
    return calibration;
  } catch (const Json::exception&) {
    throw UserError(path + " is not a calibration as vericache calibrate kvquant writes it");
  } catch (const UserError& error) {
    throw UserError(path + " is not a calibration for this model: " + error.what());
  }
}

}  // namespace vericache
