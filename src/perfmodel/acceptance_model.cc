#include "perfmodel/acceptance_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>

#include "base/error.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

// Sum of chance^i for i in [1, n].
double Geometric(double chance, int n) {
  return chance >= 1.0 ? n : chance * (1.0 - std::pow(chance, n)) / (1.0 - chance);
}

double ChanceFor(double accepted, int draft_length) {
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (Geometric(middle, draft_length) < accepted ? low : high) = middle;
  }
  return low;
}

}  // namespace

AcceptanceModel AcceptanceModel::FromChance(double chance) {
  AcceptanceModel model;
  model.chance_ = chance;
  return model;
}

AcceptanceModel AcceptanceModel::FromShare(double share, int draft_length) {
  return FromChance(ChanceFor(share * draft_length, draft_length));
}

AcceptanceModel AcceptanceModel::Parse(const std::string& text, int draft_length) {
  double share = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (!(share >= 0.0 && share < 1.0)) {
      throw UserError("--acceptance must be a share in [0, 1), not " + text);
    }
    return FromShare(share, draft_length);
  }
  std::ifstream file(text);
  if (!file) {
    throw UserError("--acceptance must be a share in [0, 1) or a JSON file, not '" + text + "'");
  }
  const nlohmann::json object = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::map<int, std::pair<double, int>> sums;
  if (object.is_object() && object.contains("results") && object["results"].is_array()) {
    for (const nlohmann::json& result : object["results"]) {
      if (result.is_object() && result.contains("x") && result["x"].is_number_integer() &&
          result.contains("acceptance_length") && result["acceptance_length"].is_number()) {
        auto& [sum, count] = sums[result["x"].get<int>()];
        sum += result["acceptance_length"].get<double>();
        ++count;
      }
    }
  }
  if (sums.empty()) {
    throw UserError(text + ": no results with \"x\" and \"acceptance_length\" in it");
  }
  AcceptanceModel model;
  for (const auto& [x, sum] : sums) {
    model.table_.emplace_back(x, sum.first / sum.second);
  }
  return model;
}

double AcceptanceModel::Accepted(int draft_length) const {
  if (table_.empty()) {
    return Geometric(chance_, draft_length);
  }
  // From nothing at 0; beyond the last point a longer draft gains nothing that is known.
  std::pair<int, double> before{0, 0.0};
  for (const auto& point : table_) {
    if (draft_length <= point.first) {
      const double share = static_cast<double>(draft_length - before.first) /
                           static_cast<double>(point.first - before.first);
      return before.second + share * (point.second - before.second);
    }
    before = point;
  }
  return before.second;
}

double AcceptanceModel::Chance(int draft_length) const {
  return table_.empty() ? chance_ : ChanceFor(Accepted(draft_length), draft_length);
}

}  // namespace vericache
