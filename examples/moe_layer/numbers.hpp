// bf16 and the pseudo-random numbers of the example. Written apart from the library on purpose: the
// reference must not share its conversions. Stateless, any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moe {

using Bf16 = std::uint16_t;

inline float to_float(Bf16 value) noexcept {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// Rounds to nearest even; NaN stays NaN.
inline Bf16 to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The bits of element `index` of stream `stream`: splitmix64, so any part of a tensor can be made
// anywhere without the rest.
inline std::uint64_t random_bits(std::uint64_t stream, std::uint64_t index) noexcept {
  std::uint64_t z = stream + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace moe
