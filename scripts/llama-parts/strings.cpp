// The three functions that the converter needs of llama.cpp's common.cpp, which itself needs all of
// its library.
#include <sstream>
#include <string>
#include <vector>

std::string string_join(const std::vector<std::string>& values, const std::string& separator) {
  std::ostringstream text;
  const char* between = "";
  for (const std::string& value : values) {
    text << between << value;
    between = separator.c_str();
  }
  return text.str();
}

std::vector<std::string> string_split(const std::string& text, const std::string& delimiter) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t to = text.find(delimiter); to != std::string::npos;
       to = text.find(delimiter, from)) {
    parts.push_back(text.substr(from, to - from));
    from = to + delimiter.size();
  }
  parts.push_back(text.substr(from));
  return parts;
}

std::string string_repeat(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}
