// Products of weights with rows whose bits do not depend on how many rows are computed together.
//
// ggml's mul_mat takes different code paths for different row counts. Within a class of row counts
// the results are bit-equal; across classes they are not. A RowRule keeps every product inside one
// class.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "model/weights.h"

namespace vericache {

struct RowRule {
  // Fewer rows than this are padded with zero rows: every larger count is in one class.
  int pad_to = 1;
  // If not 0: rows are multiplied in groups of this many, the last one padded; counts up to it are
  // in one class. Used where no pad_to was found.
  int group = 0;

  bool operator==(const RowRule&) const = default;
};

// W x + b for `rows` of shape [in, n]; the result has the shape [out, n].
ggml_tensor* MultiplyRows(ggml_context* context, const LinearWeights& linear, ggml_tensor* rows,
                          RowRule rule);

// What the self-check found for one kind of matrices of a model.
struct TypeReport {
  MatrixKind kind;
  int matrices = 0;
  Bytes bytes;
  // Row counts (of those tried) at which a new class begins: {1} means that all are equal.
  std::vector<int> class_starts;
  RowRule rule;
  // False where not even a single row is repeatable over thread counts: no remedy.
  bool exact = true;
  // Microseconds a row with the rule, over those without it, at some row counts: the remedy's cost.
  struct Cost {
    int rows;
    double plain_us;
    double exact_us;
    double exact_flops_per_s;  // two for each weight and row
  };
  std::vector<Cost> costs;
};

using ExactRows = std::map<MatrixKind, RowRule>;

// Multiplies slices of the model's own matrices, or what stands for packed ones, with 1 to 64 and
// some larger numbers of rows, on one and on `threads` threads, and finds a rule per kind. The
// choice rests on bits alone, never on times, so that it is the same in every run on a machine.
// `with_costs` also measures what the rules cost.
std::vector<TypeReport> CheckRows(const Weights& weights, int threads, bool with_costs);

ExactRows RulesOf(const std::vector<TypeReport>& reports);

}  // namespace vericache
