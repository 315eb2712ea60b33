#include "prompts/workloads.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "prompts/texts.h"

namespace vericache {
namespace {

// A document grows by whole parts; the question, which may depend on what it holds, comes after it.
struct Document {
  std::string before;
  std::vector<std::string> parts;
  // The question about the first `count` parts.
  std::function<std::string(std::size_t count)> question;
  bool chat = true;  // otherwise the model continues the text
};

using Random = std::mt19937;  // and no distribution: those differ between libraries

std::size_t Below(Random& random, std::size_t end) { return random() % end; }

template <std::size_t N>
std::string_view Any(Random& random, const std::array<std::string_view, N>& words) {
  return words[Below(random, N)];
}

constexpr std::array<std::string_view, 24> kNames = {
    "Ada",   "Bruno", "Chen",  "Dalia", "Emeka", "Farah", "Goran", "Hanna",
    "Ivo",   "Jamal", "Keiko", "Lena",  "Mateo", "Nadia", "Oskar", "Priya",
    "Quinn", "Rosa",  "Samir", "Tova",  "Umar",  "Vera",  "Wanda", "Yusuf"};
constexpr std::array<std::string_view, 16> kCities = {
    "Oslo",  "Lima",  "Kyoto", "Accra", "Turin", "Quito", "Perth", "Hanoi",
    "Ghent", "Cairo", "Dakar", "Leeds", "Osaka", "Porto", "Sofia", "Tunis"};
constexpr std::array<std::string_view, 12> kGoods = {
    "copper wire", "glass beads", "oak planks", "seed trays", "wool felt",   "steel bolts",
    "paper reams", "clay tiles",  "lamp oil",   "rope coils", "zinc sheets", "cork mats"};
constexpr std::array<std::string_view, 12> kVerbs = {"create", "cancel", "update",  "find",
                                                     "list",   "merge",  "archive", "assign",
                                                     "export", "rename", "share",   "audit"};
constexpr std::array<std::string_view, 12> kThings = {"invoice", "shipment", "ticket",  "account",
                                                      "report",  "meeting",  "folder",  "contract",
                                                      "payment", "project",  "webhook", "backup"};
constexpr std::array<std::string_view, 10> kFields = {"region",   "owner",    "limit", "due_date",
                                                      "priority", "currency", "label", "reason",
                                                      "format",   "channel"};

std::vector<std::string> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    const std::size_t next = std::min(end + separator.size(), text.size());
    if (text.find_first_not_of(" \n") < end) {
      parts.emplace_back(text.substr(0, next));
    }
    text.remove_prefix(next);
  }
  return parts;
}

// Lines of the text from the one that `seed` picks among the first third.
std::vector<std::string> From(std::vector<std::string> parts, std::uint32_t seed) {
  Random random(seed);
  parts.erase(parts.begin(),
              parts.begin() + static_cast<std::ptrdiff_t>(Below(random, parts.size() / 3 + 1)));
  return parts;
}

Document CodeContinue(std::uint32_t seed) {
  return {.before = "",
          .parts = From(Split(CodeText(), "\n"), seed),
          .question = [](std::size_t) { return std::string(); },
          .chat = false};
}

// The line that a function begins with; "" where the part is none.
std::string FirstLine(const std::string& part) {
  std::istringstream lines(part);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("//")) {
      continue;
    }
    const bool begins = line.find('(') != std::string::npos && line.ends_with("{") &&
                        !line.starts_with(' ') && !line.starts_with('}');
    return begins ? line : "";
  }
  return "";
}

Document CodeEdit(std::uint32_t seed) {
  Document document{.before = "Here is a C++ file.\n\n```cpp\n",
                    .parts = From(Split(CodeText(), "\n}\n"), seed),
                    .question = {}};
  document.question = [parts = document.parts](std::size_t count) {
    // The longest of the last functions.
    std::size_t chosen = 0;
    std::string first;
    int seen = 0;
    for (std::size_t i = count; i-- > 0 && seen < 6;) {
      const std::string line = FirstLine(parts[i]);
      if (!line.empty() && (++seen == 1 || parts[i].size() > parts[chosen].size())) {
        chosen = i;
        first = line;
      }
    }
    return "```\n\nWrite the function that begins with `" + first +
           "` again, in full and otherwise unchanged, with the comment `// checked` at the end of "
           "each line that has a `return`. Answer with the code alone.";
  };
  return document;
}

Document Extract(std::uint32_t seed) {
  Random random(seed);
  Document document{.before = "Notes of a warehouse:\n\n", .parts = {}, .question = {}};
  for (int i = 0; i < 2000; ++i) {
    std::ostringstream text;
    text << "Order " << 1000 + i * 7 + static_cast<int>(Below(random, 7)) << ": "
         << Any(random, kNames) << " from " << Any(random, kCities) << " asked for "
         << 2 + Below(random, 98) << " units of " << Any(random, kGoods) << " at "
         << 1 + Below(random, 40) << "." << 10 + Below(random, 90) << " each.\n";
    document.parts.push_back(text.str());
  }
  document.question = [](std::size_t) {
    return std::string(
        "\nWrite the orders as JSON, one object per line, in the order of the notes, with the keys "
        "\"order\", \"name\", \"city\", \"units\", \"goods\" and \"price\". Begin with the first "
        "one.");
  };
  return document;
}

Document Call(std::uint32_t seed) {
  Random random(seed);
  Document document{.before = "You can call these functions:\n\n", .parts = {}, .question = {}};
  std::vector<std::pair<std::string, std::vector<std::string>>> functions;
  for (int i = 0; i < 1000; ++i) {
    std::string name = std::string(Any(random, kVerbs)) + "_" + std::string(Any(random, kThings)) +
                       "_" + std::to_string(100 + i);
    std::vector<std::string> fields;
    std::string schema;
    while (fields.size() < 3) {
      const std::string field(Any(random, kFields));
      if (std::ranges::find(fields, field) == fields.end()) {
        fields.push_back(field);
        schema += (schema.empty() ? "" : ", ") + ("\"" + field) + "\": {\"type\": \"string\"}";
      }
    }
    document.parts.push_back("{\"name\": \"" + name + "\", \"parameters\": {" + schema + "}}\n");
    functions.emplace_back(std::move(name), std::move(fields));
  }
  const std::size_t which = random();
  document.question = [functions, which](std::size_t count) {
    std::string text =
        "\nCall these, one JSON object {\"name\": …, \"arguments\": {…}} per line:\n";
    for (std::size_t i = 0; i < std::min<std::size_t>(6, count); ++i) {
      // Spread over all of them, each another one.
      const auto& [name, fields] = functions[(which + i * count / 6) % count];
      text += "- " + name.substr(0, name.rfind('_')) + " number " +
              name.substr(name.rfind('_') + 1) + " with ";
      for (std::size_t j = 0; j < fields.size(); ++j) {
        text += (j == 0 ? "" : ", ") + fields[j] + " " +
                std::string(kCities[(which + i * 5 + j) % kCities.size()]);
      }
      text += "\n";
    }
    return text;
  };
  return document;
}

Document Arithmetic(std::uint32_t seed) {
  Random random(seed);
  Document document{.before = "Each line defines a number.\n\n", .parts = {}, .question = {}};
  for (int i = 0; i < 3000; ++i) {
    std::ostringstream text;
    text << "n" << i << " = ";
    if (i < 3) {
      text << 1 + Below(random, 50);
    } else {
      text << "n" << i - 1 - static_cast<int>(Below(random, 3))
           << (Below(random, 2) == 0 ? " + " : " - ") << 1 + Below(random, 50);
    }
    text << "\n";
    document.parts.push_back(text.str());
  }
  document.question = [](std::size_t count) {
    return "\nWork out the value of every number in order, from n0 to n" +
           std::to_string(count - 1) +
           ". Write one line for each, such as `n0 = 7`, and nothing else.";
  };
  return document;
}

Document Quote(std::uint32_t seed) {
  Document document{.before = "", .parts = {}, .question = {}};
  std::vector<std::string> paragraphs = From(Split(ProseText(), "\n\n"), seed);
  for (std::size_t i = 0; i < paragraphs.size(); ++i) {
    std::ostringstream text;
    text << '[' << i + 1 << "] " << paragraphs[i];
    document.parts.push_back(text.str());
  }
  document.question = [seed](std::size_t count) {
    Random random(seed + 1);
    std::string text = "\nQuote these paragraphs, word by word, each with its number in brackets:";
    const std::size_t first = Below(random, count);
    for (std::size_t i = 0; i < std::min<std::size_t>(3, count); ++i) {
      text += (i == 0 ? " " : ", ") + std::to_string(1 + (first + i * count / 3) % count);
    }
    return text + ".";
  };
  return document;
}

struct Entry {
  WorkloadKind workload;
  Document (*make)(std::uint32_t seed);
};

constexpr std::array<Entry, 6> kEntries = {
    {{{"code-continue", "continue a C++ file"}, CodeContinue},
     {{"code-edit", "write a function of a C++ file again, with a small change"}, CodeEdit},
     {{"extract", "write the records of a text as JSON"}, Extract},
     {{"call", "call the right ones of many functions"}, Call},
     {{"arithmetic", "work out a chain of sums"}, Arithmetic},
     {{"quote", "quote paragraphs of a text"}, Quote}}};

constexpr auto kWorkloads = [] {
  std::array<WorkloadKind, kEntries.size()> workloads;
  std::ranges::transform(kEntries, workloads.begin(), &Entry::workload);
  return workloads;
}();

std::string TextOf(const Document& document, std::size_t count) {
  std::string text = document.before;
  for (std::size_t i = 0; i < count; ++i) {
    text += document.parts[i];
  }
  return text + document.question(count);
}

}  // namespace

std::span<const WorkloadKind> Workloads() { return kWorkloads; }

std::function<int(const std::string&)> CounterOf(const Tokenizer& tokenizer) {
  return [&tokenizer](const std::string& text) {
    return static_cast<int>(tokenizer.Encode(text, /*special=*/false).size());
  };
}

PromptText MakeWorkload(std::string_view name, int tokens, std::uint32_t seed,
                        const std::function<int(const std::string&)>& count_tokens) {
  const auto entry =
      std::ranges::find(kEntries, name, [](const Entry& each) { return each.workload.name; });
  if (entry == kEntries.end()) {
    std::string known;
    for (const WorkloadKind& each : Workloads()) {
      known += (known.empty() ? "" : ", ") + std::string(each.name);
    }
    throw UserError("unknown workload '" + std::string(name) + "'; known are " + known);
  }
  const Document document = entry->make(seed);
  const auto fits = [&](std::size_t count) {
    return count_tokens(TextOf(document, count)) <= tokens;
  };
  if (!fits(1) || fits(document.parts.size())) {
    throw UserError("the workload " + std::string(name) + " cannot have " + std::to_string(tokens) +
                    " tokens: " + (fits(1) ? "its text is shorter" : "one record takes more"));
  }
  std::size_t least = 1;
  std::size_t most = document.parts.size();  // does not fit
  while (most - least > 1) {
    const std::size_t middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  PromptText prompt{.id = std::string(name) + "-" + std::to_string(seed),
                    .messages = {},
                    .text = TextOf(document, least),
                    .max_tokens = std::nullopt};
  if (document.chat) {
    prompt.messages = {{.role = "user", .content = std::exchange(prompt.text, "")}};
  }
  return prompt;
}

}  // namespace vericache
