// Which form of the weights is fastest on this machine: --weights auto.
#pragma once

#include "base/types.h"
#include "model/gguf_file.h"
#include "model/weight_form.h"

namespace vericache {

struct WeightChoice {
  WeightForm form;
  double speedup = 1.0;  // of products, over those with the file's own weights
  Bytes file;            // of the weights as they are
  Bytes chosen;          // and as chosen
};

// Loads the model in each of kWeightForms and measures its products, with the rules that make them
// exact, at 4 and 26 rows: those of a small batch of drafts and of a verify. A
// product takes as long as its arithmetic, measured on a slice that the processor's caches hold, or
// as reading the weights from memory. Chooses another form than the file's only where that is at
// least 1.3 times as fast, and memory holds it. Takes seconds; another time it may choose otherwise
// where two are close.
WeightChoice ChooseWeights(const GgufFile& file, int threads);

}  // namespace vericache
