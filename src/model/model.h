#pragma once

#include <filesystem>
#include <vector>

#include "model/exact_rows.h"
#include "model/gguf_file.h"
#include "model/params.h"
#include "model/weights.h"

namespace vericache {

struct ModelOptions {
  int threads = 1;
  WeightForm weights;
  bool measure_costs = false;  // of the rules that make products exact
};

// A loaded model: shape, weights, and the rules that make its products exact.
class Model {
 public:
  // Loads a GGUF file and runs the self-check. Throws UserError: see GgufFile, ReadParams, Weights.
  Model(const std::filesystem::path& path, const ModelOptions& options)
      : file_(path),
        params_(ReadParams(file_)),
        weights_(file_, params_, options.weights, options.threads),
        reports_(CheckRows(weights_, options.threads, options.measure_costs)),
        rules_(RulesOf(reports_)),
        form_(options.weights) {}

  const GgufFile& file() const { return file_; }
  const ModelParams& params() const { return params_; }
  const Weights& weights() const { return weights_; }
  const std::vector<TypeReport>& reports() const { return reports_; }
  const ExactRows& rules() const { return rules_; }
  const WeightForm& form() const { return form_; }

 private:
  GgufFile file_;
  ModelParams params_;
  Weights weights_;
  std::vector<TypeReport> reports_;
  ExactRows rules_;
  WeightForm form_;
};

}  // namespace vericache
