// Plain C++: the fallback, and the arithmetic of the data check.
#include <bit>
#include <cmath>
#include <cstring>

#include "perf/kernels.hpp"

namespace m2n::perf {
namespace {

float half_to_float(std::uint32_t half) noexcept {
  const std::uint32_t exponent = (half >> 10) & 31;
  const std::uint32_t mantissa = half & 1023;
  float value = 0;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    value = mantissa != 0 ? NAN : INFINITY;
  } else {
    value = std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  }
  return (half & 0x8000) != 0 ? -value : value;
}

std::uint32_t float_to_half(float value) noexcept {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 31 << 15;
  const float size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520.0F) return sign | 0x7c00;
  if (size == 0) return sign;
  int exponent = 0;
  (void)std::frexp(size, &exponent);  // size = f * 2^exponent, f in [0.5, 1)
  const int scale = std::max(exponent - 11, -24);
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, -scale)));
  // mantissa 2048 carries into the exponent by itself.
  return sign |
         (scale == -24 ? mantissa : (static_cast<std::uint32_t>(scale + 24) << 10) + mantissa);
}

std::uint32_t float_to_bfloat(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

template <DataType type>
void sum_plain(const Sum& s) {
  using Element = std::conditional_t<type == DataType::f32, std::uint32_t, std::uint16_t>;
  for (std::size_t h = 0; h < s.columns; ++h) {
    float acc = 0;
    for (std::uint32_t i = 0; i < s.count; ++i) {
      Element element = 0;
      std::memcpy(&element, static_cast<const std::byte*>(s.rows[i]) + h * sizeof(Element),
                  sizeof(Element));
      const float weight = s.weights != nullptr ? s.weights[i] : 1.0F;
      acc = std::fma(weight, to_float(type, element), acc);
    }
    const auto element = static_cast<Element>(from_float(type, acc));
    std::memcpy(static_cast<std::byte*>(s.out) + h * sizeof(Element), &element, sizeof(Element));
  }
}

void fence_none() {}

void copy_plain(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void merge_plain(void* to, const void* const* rows, std::uint32_t count, std::size_t bytes) {
  if (count == 0) return;
  auto* out = static_cast<unsigned char*>(to);
  std::memcpy(out, rows[0], bytes);
  for (std::uint32_t i = 1; i < count; ++i) {
    const auto* row = static_cast<const unsigned char*>(rows[i]);
    for (std::size_t b = 0; b < bytes; ++b) out[b] = static_cast<unsigned char>(out[b] ^ row[b]);
  }
}

void fill_plain(void* to, const void* pattern, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  for (std::size_t b = 0; b < bytes; b += 256) {
    std::memcpy(out + b, pattern, std::min<std::size_t>(256, bytes - b));
  }
}

}  // namespace

float to_float(DataType type, std::uint32_t bits) noexcept {
  if (type == DataType::f32) return std::bit_cast<float>(bits);
  if (type == DataType::f16) return half_to_float(bits);
  return std::bit_cast<float>(bits << 16);
}

std::uint32_t from_float(DataType type, float value) noexcept {
  if (type == DataType::f32) return std::bit_cast<std::uint32_t>(value);
  return type == DataType::f16 ? float_to_half(value) : float_to_bfloat(value);
}

const Kernels& portable_kernels() noexcept {
  static constexpr Kernels set{"portable",
                               copy_plain,
                               copy_plain,
                               merge_plain,
                               merge_plain,
                               fence_none,
                               fill_plain,
                               sum_plain<DataType::bf16>,
                               sum_plain<DataType::f16>,
                               sum_plain<DataType::f32>};
  return set;
}

}  // namespace m2n::perf
