// Scalar conversions between f32 and the 16-bit float types, as bit patterns. Round to nearest even
// by integer arithmetic: denormals are kept, NaN stays NaN, and no rounding mode or flush flag of
// the CPU matters. Pure, usable in constant expressions and from any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace m2n::transport {

constexpr float f32_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr std::uint16_t bf16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffu) > 0x7f80'0000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // quiet, so it cannot become inf
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float f32_from_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  std::uint32_t magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = 0x7f80'0000u | (mantissa << 13) | (mantissa != 0 ? 0x40'0000u : 0u);
  } else if (exponent != 0) {
    magnitude = ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa != 0) {  // a denormal: all of them are normal in f32
    const auto zeros = static_cast<std::uint32_t>(std::countl_zero(mantissa)) - 21;
    magnitude = ((113 - zeros) << 23) | (((mantissa << zeros) & 0x3ffu) << 13);
  }
  return std::bit_cast<float>(sign | magnitude);
}

constexpr std::uint16_t f16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fff'ffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f80'0000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  } else if (magnitude >= 0x4780'0000u) {  // 65536 and more; 65520.. reach inf by rounding below
    result = 0x7c00u;
  } else if (magnitude >= 0x3880'0000u) {  // at least 2^-14: normal
    const std::uint32_t rebiased = magnitude - 0x3800'0000u;
    result = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x3300'0000u) {  // at least 2^-25: a denormal, in units of 2^-24
    const std::uint32_t shift = 126 - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7f'ffffu) | 0x80'0000u;
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    result = mantissa >> shift;
    result += (rest > half || (rest == half && (result & 1u) != 0)) ? 1u : 0u;
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace m2n::transport
