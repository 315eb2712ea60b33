// The fields of a request that say what shape its answer has: response_format and tools.
#pragma once

#include <string>

#include "server/api_request.h"
#include "server/fields.h"

namespace vericache {

// Throw ApiError, naming the field.
void ReadFormat(const Fields& fields, ApiRequest& request);
void ReadTools(const Fields& fields, ApiRequest& request);

// The calls of tools that a message of an assistant made, as it wrote them. `fields_left`: of the
// JSON that the arguments of all messages are.
std::string CallsMadeBefore(const Fields& message, int& fields_left);

}  // namespace vericache
