#include "server/schema_limits.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <system_error>

#include "server/api_error.h"

namespace vericache {
namespace {

using json = nlohmann::ordered_json;

// What is converted, at most: each object and each other value counts so much, and more by what the
// converter makes of it.
constexpr std::size_t kMostCost = 20'000;
constexpr std::size_t kObject = 10;
constexpr std::size_t kValue = 3;
constexpr std::size_t kPatternByte = 2;
constexpr std::size_t kTextBytes = 64;  // count one more; so do
constexpr std::size_t kNameBytes = 16;
constexpr std::size_t kRepetitions = 10;
// The grammar's parser takes more than so many repetitions for any number, or refuses them.
constexpr double kMostRepetitions = 2000;
// The converter's time grows with the third power of it.
constexpr std::size_t kMostProperties = 128;
// The converter matches names with a regular expression, which recurses.
constexpr std::size_t kLongestName = 256;
constexpr int kDeepestSchema = 256;

bool IsRepetition(const std::string& key) {
  return key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems";
}

const json* Member(const json& schema, const char* key) {
  const auto found = schema.is_object() ? schema.find(key) : schema.end();
  return found == schema.end() ? nullptr : &*found;
}

// Goes where the converter goes: each $ref is followed once, but those of an allOf each time.
class Walk {
 public:
  Walk(const json& root, const char* field) : root_(root), field_(field) {}

  // `name`: bytes of the names on the way here.
  void Visit(const json& value, int depth, std::size_t name) {
    if (depth > kDeepestSchema) {
      Refuse("is nested too deeply, or contains itself");
    }
    if (value.is_object()) {
      const json* type = Member(value, "type");
      // A list of types makes a copy of the schema for each.
      const std::size_t copies = type != nullptr && type->is_array() ? type->size() : 1;
      for (std::size_t i = 0; i < std::max<std::size_t>(copies, 1); ++i) {
        VisitObject(value, depth, name);
      }
      return;
    }
    Spend(kValue +
          (value.is_string() ? value.get_ref<const std::string&>().size() / kTextBytes : 0));
    if (value.is_array()) {
      for (const json& each : value) {
        Visit(each, depth + 1, name);
      }
    }
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw ApiError::Invalid("the JSON schema " + why, field_);
  }

  void Spend(std::size_t cost) {
    cost_ += cost;
    if (cost_ > kMostCost) {
      Refuse("is too large");
    }
  }

  void CheckName(const std::string& name) const {
    if (name.size() > kLongestName) {
      Refuse("has a name of more than " + std::to_string(kLongestName) + " bytes");
    }
  }

  void CheckProperties(std::size_t count) const {
    if (count > kMostProperties) {
      Refuse("has an object of more than " + std::to_string(kMostProperties) + " properties");
    }
  }

  void CheckOrder(const json& schema, const char* least, const char* most) const {
    const json* low = Member(schema, least);
    const json* high = Member(schema, most);
    if (low != nullptr && high != nullptr && low->is_number() && high->is_number() &&
        low->get<double>() > high->get<double>()) {
      Refuse(std::string("has a ") + least + " above its " + most);
    }
  }

  void VisitObject(const json& schema, int depth, std::size_t name) {
    Spend(kObject + name / kNameBytes);
    CheckOrder(schema, "minLength", "maxLength");
    CheckOrder(schema, "minItems", "maxItems");
    for (const auto& [key, value] : schema.items()) {
      CheckName(key);
      if (key == "$ref" && value.is_string()) {
        if (followed_.insert(value.get<std::string>()).second) {
          Visit(Target(value), depth + 1, name);
        }
      } else if (key == "allOf" && value.is_array()) {
        std::size_t properties = 0;
        for (const json& part : value) {
          properties += VisitPart(part, depth + 1, name);
        }
        CheckProperties(properties);
      } else {
        if (key == "properties") {
          CheckProperties(value.size());
        } else if (key == "pattern" && value.is_string()) {
          Spend(kPatternByte * value.get_ref<const std::string&>().size());
        } else if (IsRepetition(key) && value.is_number()) {
          const double times = value.get<double>();
          Spend(times > 0 && times <= kMostRepetitions
                    ? static_cast<std::size_t>(times) / kRepetitions
                    : 0);
        }
        Visit(value, depth + 1, name + key.size());
      }
    }
  }

  // Of an allOf, or of an anyOf in it; how many properties it brings.
  std::size_t VisitPart(const json& part, int depth, std::size_t name) {
    const json* schema = &part;
    for (const json* ref = Member(*schema, "$ref"); ref != nullptr && ref->is_string();
         ref = Member(*schema, "$ref")) {
      schema = &Target(*ref);
      if (++depth > kDeepestSchema) {
        Refuse("has a $ref that leads to itself");
      }
    }
    Visit(*schema, depth, name);
    const json* own = Member(*schema, "properties");
    std::size_t properties = own == nullptr ? 0 : own->size();
    for (const char* key : {"anyOf", "oneOf"}) {
      const json* any = Member(*schema, key);
      if (any != nullptr && any->is_array()) {
        for (const json& each : *any) {
          properties += VisitPart(each, depth + 1, name);
        }
      }
    }
    return properties;
  }

  // Only of the same document, as the converter does; and only what it takes in the same way.
  const json& Target(const json& ref) const {
    const auto& text = ref.get_ref<const std::string&>();
    CheckName(text);
    const char* nowhere = "has a $ref that leads nowhere in it";
    if (!text.starts_with("#/") || text.find('~') != std::string::npos) {
      Refuse(nowhere);
    }
    try {
      return root_.at(json::json_pointer(text.substr(1)));
    } catch (const json::exception&) {
      Refuse(nowhere);
    }
  }

  const json& root_;
  const char* field_;
  std::size_t cost_ = 0;
  std::set<std::string> followed_;
};

}  // namespace

void CheckSchema(const json& schema, const char* field) { Walk(schema, field).Visit(schema, 0, 0); }

void CheckRules(const std::string& gbnf, const char* field) {
  char closing = 0;  // of the literal, or the set of characters, that it is in
  for (std::size_t i = 0; i < gbnf.size(); ++i) {
    const char c = gbnf[i];
    if (c == '\\') {
      ++i;
    } else if (closing != 0) {
      closing = c == closing ? '\0' : closing;
    } else if (c == '"' || c == '[') {
      closing = c == '[' ? ']' : c;
    } else if (c == '{') {
      const char* end = gbnf.data() + gbnf.size();
      std::uint64_t least = 0;
      std::uint64_t most = 0;
      const auto [comma, no_least] = std::from_chars(gbnf.data() + i + 1, end, least);
      if (no_least == std::errc() && comma != end && *comma == ',' &&
          std::from_chars(comma + 1, end, most).ec == std::errc() && most < least) {
        throw ApiError::Invalid("the JSON schema asks for at least " + std::to_string(least) +
                                    " and at most " + std::to_string(most) + " of something",
                                field);
      }
    }
  }
}

}  // namespace vericache
