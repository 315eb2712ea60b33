#include "evaluation/text_windows.h"

#include <algorithm>

#include "base/error.h"
#include "base/size.h"

namespace vericache {

std::vector<std::span<const TokenId>> TextWindows(std::span<const std::vector<TokenId>> texts,
                                                  int tokens, int window, int context) {
  std::vector<std::span<const TokenId>> windows;
  const int most = std::min(window, context);
  if (most <= kGroupSlots) {
    return windows;
  }
  int left = tokens;
  for (const std::vector<TokenId>& text : texts) {
    std::span<const TokenId> rest = text;
    while (static_cast<int>(rest.size()) > kGroupSlots && left > kGroupSlots) {
      const std::size_t count = std::min({rest.size(), Size(most), Size(left)});
      windows.push_back(rest.first(count));
      rest = rest.subspan(count);
      left -= static_cast<int>(count);
    }
  }
  return windows;
}

void Prefill(Transformer& transformer, std::span<const TokenId> text, int chunk, KvCache& cache,
             Taps* taps) {
  const int count = static_cast<int>(text.size());
  for (int done = 0; done < count;) {
    const int rows = std::min(chunk, count - done);
    if (!cache.Extend(rows)) {
      throw UserError("too little memory for the caches");
    }
    std::vector<Position> positions;
    positions.reserve(Size(rows));
    for (int i = 0; i < rows; ++i) {
      positions.push_back(Position{done + i});
    }
    const AttentionTask task{
        .cache = &cache, .first_row = 0, .rows = rows, .first_position = done, .taps = taps};
    transformer.Forward({.tokens = text.subspan(Size(done), Size(rows)),
                         .positions = positions,
                         .outputs = {},
                         .tasks = {&task, 1}});
    done += rows;
  }
}

}  // namespace vericache
