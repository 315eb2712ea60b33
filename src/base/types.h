// The few scalar types that could be mixed up, and the conversions to plain integers.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <type_traits>

namespace vericache {

// A vocabulary entry.
enum class TokenId : std::int32_t {};

// The place of a token in its sequence, from 0; what RoPE rotates by.
enum class Position : std::int32_t {};

// A transformer layer, from 0.
enum class LayerId : std::int32_t {};

// The integer inside a strong type.
template <typename E>
  requires std::is_enum_v<E>
constexpr auto Raw(E value) {
  return static_cast<std::underlying_type_t<E>>(value);
}

// An amount of memory.
struct Bytes {
  std::uint64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    count += other.count;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count -= other.count;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return {a.count * n}; }
};

// For rates and shares.
constexpr double Count(Bytes bytes) { return static_cast<double>(bytes.count); }

// "93.8 MiB", for people.
std::string HumanBytes(Bytes bytes);

// Parses "512MiB", "2GB", "4096": a number and one of B, KB, KiB, MB, MiB, GB, GiB.
// Throws UserError where `text` is anything else.
Bytes ParseBytes(const std::string& text);

}  // namespace vericache
