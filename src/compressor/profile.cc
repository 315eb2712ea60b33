#include "compressor/profile.h"

#include <fstream>

#include "base/error.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

using Json = nlohmann::ordered_json;

NumberFormat FormatOf(const Json& layer, const char* key) {
  const auto name = layer.at(key).get<std::string>();
  const std::optional<NumberFormat> format = ParseNumberFormat(name);
  if (!format) {
    throw UserError("the format '" + name + "' of " + key + " is unknown");
  }
  return *format;
}

double ShareOf(const Json& layer, const char* key) {
  const double share = layer.at(key).get<double>();
  if (!(share > 0.0 && share <= 1.0)) {
    throw UserError(std::string(key) + " must be above 0 and at most 1");
  }
  return share;
}

LayerRecipe RecipeOf(const Json& layer) {
  LayerRecipe recipe;
  if (layer.contains("keep")) {
    recipe.keep = ShareOf(layer, "keep");
  }
  if (layer.contains("keys") || layer.contains("values")) {
    recipe.format = KvFormat{FormatOf(layer, "keys"), FormatOf(layer, "values")};
  }
  if (layer.contains("low_keys") || layer.contains("low_values")) {
    if (!recipe.format) {
      throw UserError("a split layer needs the formats keys and values, too");
    }
    recipe.split = Split{.low = {FormatOf(layer, "low_keys"), FormatOf(layer, "low_values")},
                         .high_share = ShareOf(layer, "high_share")};
  }
  return recipe;
}

Json ToJson(const LayerRecipe& recipe) {
  Json layer = Json::object();
  if (recipe.keep) {
    layer["keep"] = *recipe.keep;
  }
  if (recipe.format) {
    layer["keys"] = Name(recipe.format->keys);
    layer["values"] = Name(recipe.format->values);
  }
  if (recipe.split) {
    layer["low_keys"] = Name(recipe.split->low.keys);
    layer["low_values"] = Name(recipe.split->low.values);
    layer["high_share"] = recipe.split->high_share;
  }
  return layer;
}

}  // namespace

std::string ToText(const Profile& profile) {
  // A layer a line, so that differences between profiles can be read.
  std::string text = "{\"model\": " + Json(profile.model).dump() +
                     ", \"scorer\": " + Json(profile.scorer).dump() +
                     ", \"residual\": " + std::to_string(profile.residual) + ", \"layers\": [";
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    text += (i == 0 ? "\n  " : ",\n  ") + ToJson(profile.layers[i]).dump();
  }
  return text + "\n]}\n";
}

Profile ReadProfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw UserError("cannot read the profile " + path);
  }
  try {
    const Json json = Json::parse(file);
    Profile profile{.model = json.value("model", ""),
                    .scorer = json.value("scorer", ""),
                    .residual = json.value("residual", 0),
                    .layers = {}};
    if (profile.residual < 0) {
      throw UserError("the residual is negative");
    }
    for (const Json& layer : json.at("layers")) {
      profile.layers.push_back(RecipeOf(layer));
    }
    if (profile.layers.empty()) {
      throw UserError("it has no layers");
    }
    return profile;
  } catch (const Json::exception&) {
    throw UserError(path + " is not a profile as vericache tune writes it");
  } catch (const UserError& error) {
    throw UserError(path + " is not a profile: " + error.what());
  }
}

}  // namespace vericache
