// Floating-point arithmetic from first principles, for tests: values are integers times powers of
// two, sums are wide integers, and one function rounds to any of the formats. Shares nothing with
// what it judges.
#pragma once

#include <array>
#include <cstdint>

#include "m2n/types.hpp"

namespace m2n::test {

// A format of `mantissa_bits` stored bits and a smallest step of 2^lowest_exponent.
struct Format {
  int mantissa_bits;
  int exponent_bits;
  int lowest_exponent;
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};
Format format_of(DataType type);

// mantissa * 2^exponent; exact. The product of two f32 fits.
struct Number {
  enum class Kind { finite, infinite, nan };
  Kind kind = Kind::finite;
  bool negative = false;
  std::uint64_t mantissa = 0;
  int exponent = 0;
};

Number decode(DataType type, std::uint32_t bits);
// The nearest value of the type, ties to even; overflow is infinite.
std::uint32_t round_to(DataType type, const Number& value);
// x * y + z as f32 bits, rounded once.
std::uint32_t exact_fma(std::uint32_t x, std::uint32_t y, std::uint32_t z);

bool is_nan(DataType type, std::uint32_t bits);
// Equal bits, or both NaN.
bool same(DataType type, std::uint32_t a, std::uint32_t b);

}  // namespace m2n::test
