#pragma once

#include "compressor/compressor.h"

namespace vericache {

// The attention of the queries of positions [first, first + rows) to positions [0, counted), per KV
// head: softmax(q k / sqrt(d)) over all that each query sees, averaged over the rows and the query
// heads of a KV head. view.taps holds the queries.
LayerScores WindowAttention(const PromptView& view, LayerId layer, int first, int rows,
                            int counted);

// Means over `kernel` neighbours, odd, with zeros beyond the ends.
std::vector<float> AveragePool(std::span<const float> scores, int kernel);

}  // namespace vericache
