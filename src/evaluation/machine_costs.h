// What a model's iterations cost on this machine, for the performance model.
#pragma once

#include "model/transformer.h"

namespace vericache {

struct MachineCosts {
  // An iteration over empty caches takes iteration_s and row_s for each row, up to kRows: weights,
  // norms and all else that is no attention.
  double iteration_s = 0.0;
  double row_s = 0.0;
  // Bytes of a 16-bit cache that attention goes over in a second: for one row, and for kRows rows
  // of one request, which is a verify.
  double draft_cache_bytes_per_s = 0.0;
  double verify_cache_bytes_per_s = 0.0;

  static constexpr int kRows = 26;
};

// Computes a few iterations over caches of up to 4,096 tokens of random numbers. Throws as
// Transformer::Forward does.
MachineCosts MeasureCosts(Transformer& transformer);

}  // namespace vericache
