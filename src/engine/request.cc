#include "engine/request.h"

namespace vericache {

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

}  // namespace vericache
