// What a JSON schema may ask of the converter to grammars, whose time, memory and stack may grow
// much faster than the schema does, and without end where schemas contain themselves.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace vericache {

// Throws ApiError, naming `field`, where a schema is too large, has an object of too many
// properties, a name that is too long, an allOf that contains itself, or a $ref that leads nowhere.
void CheckSchema(const nlohmann::ordered_json& schema, const char* field);

// What the converter made of it, in llama.cpp's notation. Throws ApiError, naming `field`, where
// something is repeated at least as often as, but at most less often than: the grammar's parser
// makes rules for it without end.
void CheckRules(const std::string& gbnf, const char* field);

}  // namespace vericache
