// How the matrices of a model are held in memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ggml-backend.h"
#include "ggml.h"

namespace vericache {

struct WeightForm {
  std::optional<ggml_type> as;  // what they are converted to; nullopt: as they are in the file
  // Laid out anew for this processor's instructions, where ggml knows how (its CPU backend's extra
  // buffer types): the same numbers, multiplied by other code. An embedding that is the output
  // matrix, too, is then held twice.
  bool packed = false;

  bool operator==(const WeightForm&) const = default;
};

// Those that there are to choose from.
inline constexpr std::array<WeightForm, 5> kWeightForms = {{{},
                                                            {.packed = true},
                                                            {.as = GGML_TYPE_Q8_0},
                                                            {.as = GGML_TYPE_Q8_0, .packed = true},
                                                            {.as = GGML_TYPE_BF16}}};

// "as-is", "packed", "q8_0", "q8_0-packed", …
std::string Name(const WeightForm& form);
// nullopt for an unknown name.
std::optional<WeightForm> ParseWeightForm(const std::string& name);

// Which of ggml's layouts holds a matrix of `out` rows of `in` numbers for products on this
// processor: the first that there is, or the plain one.
ggml_backend_buffer_type_t PackingFor(ggml_type type, std::int64_t in, std::int64_t out);

}  // namespace vericache
