#include "exact.hpp"

#include <algorithm>
#include <bit>

namespace m2n::test {
namespace {

constexpr int wide_lowest = -298;  // the smallest product of two f32: 2^-149 squared

// An unsigned integer in units of 2^wide_lowest; holds the largest product and sum.
class Wide {
 public:
  static Wide of(std::uint64_t mantissa, int exponent) {
    Wide result;
    const int shift = exponent - wide_lowest;
    for (int bit = 0; bit < 64; ++bit) {
      if ((mantissa >> bit) & 1u) result.set(shift + bit);
    }
    return result;
  }
  bool bit(int position) const {
    return position >= 0 && ((words_[position / 64] >> (position % 64)) & 1u) != 0;
  }
  int top() const {  // position of the highest set bit, -1 for zero
    for (int word = words - 1; word >= 0; --word) {
      if (words_[word] != 0) return word * 64 + 63 - std::countl_zero(words_[word]);
    }
    return -1;
  }
  bool any_below(int position) const {
    for (int i = 0; i < position; ++i) {
      if (bit(i)) return true;
    }
    return false;
  }
  bool less_than(const Wide& other) const {
    for (int word = words - 1; word >= 0; --word) {
      if (words_[word] != other.words_[word]) return words_[word] < other.words_[word];
    }
    return false;
  }
  Wide plus(const Wide& other) const { return combine(other, false); }
  Wide minus(const Wide& other) const { return combine(other, true); }

 private:
  static constexpr int words = 10;
  void set(int position) { words_[position / 64] |= std::uint64_t{1} << (position % 64); }
  Wide combine(const Wide& other, bool subtract) const {
    Wide result;
    std::uint64_t carry = subtract ? 1 : 0;
    for (int word = 0; word < words; ++word) {
      const std::uint64_t term = subtract ? ~other.words_[word] : other.words_[word];
      const std::uint64_t partial = words_[word] + term;
      result.words_[word] = partial + carry;
      carry = (partial < term ? 1u : 0u) + (result.words_[word] < partial ? 1u : 0u);
    }
    return result;
  }
  std::array<std::uint64_t, words> words_{};
};

std::uint32_t round_wide(DataType type, bool negative, const Wide& value) {
  const Format format = format_of(type);
  const std::uint32_t sign = negative ? 1u << (format.bits() - 1) : 0u;
  const int top = value.top();
  if (top < 0) return sign;
  const int lowest = format.lowest_exponent - wide_lowest;
  // Position of the last kept bit: mantissa_bits below the top one, but never below the step.
  const int last = std::max(top - format.mantissa_bits, lowest);
  std::uint64_t kept = 0;
  for (int position = top; position >= last; --position) {
    kept = kept * 2 + (value.bit(position) ? 1 : 0);
  }
  const bool half = value.bit(last - 1);
  if (half && (value.any_below(last - 1) || (kept & 1u) != 0)) ++kept;
  // A number of step exponent `last` and 1.m form counts up from its binade: adding the carry that
  // leaves the mantissa moves on to the next binade, and from the largest one to infinity.
  const auto binade = static_cast<std::uint64_t>(last - lowest);
  const std::uint64_t magnitude = (binade << format.mantissa_bits) + kept;
  const std::uint64_t bits = magnitude >= format.infinity() ? format.infinity() : magnitude;
  return sign | static_cast<std::uint32_t>(bits);
}

constexpr std::uint32_t f32_nan = 0x7fc0'0000u;
constexpr std::uint32_t f32_infinity = 0x7f80'0000u;

std::uint32_t signed_infinity(bool negative) {
  return f32_infinity | (negative ? 0x8000'0000u : 0u);
}

}  // namespace

Format format_of(DataType type) {
  switch (type) {
    case DataType::bf16:
      return {7, 8, -133};
    case DataType::f16:
      return {10, 5, -24};
    default:
      return {23, 8, -149};
  }
}

Number decode(DataType type, std::uint32_t bits) {
  const Format format = format_of(type);
  Number result;
  result.negative = ((bits >> (format.bits() - 1)) & 1u) != 0;
  const std::uint32_t exponent =
      (bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
  const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  if (exponent == (1u << format.exponent_bits) - 1) {
    result.kind = mantissa == 0 ? Number::Kind::infinite : Number::Kind::nan;
    return result;
  }
  const bool normal = exponent != 0;
  result.mantissa = mantissa + (normal ? 1u << format.mantissa_bits : 0u);
  result.exponent = format.lowest_exponent + (normal ? static_cast<int>(exponent) - 1 : 0);
  return result;
}

std::uint32_t round_to(DataType type, const Number& value) {
  const Format format = format_of(type);
  const std::uint32_t sign = value.negative ? 1u << (format.bits() - 1) : 0u;
  if (value.kind == Number::Kind::infinite) return sign | format.infinity();
  if (value.kind == Number::Kind::nan) return format.infinity() | 1u;
  return round_wide(type, value.negative, Wide::of(value.mantissa, value.exponent));
}

std::uint32_t exact_fma(std::uint32_t x_bits, std::uint32_t y_bits, std::uint32_t z_bits) {
  const Number x = decode(DataType::f32, x_bits);
  const Number y = decode(DataType::f32, y_bits);
  const Number z = decode(DataType::f32, z_bits);
  using Kind = Number::Kind;
  if (x.kind == Kind::nan || y.kind == Kind::nan || z.kind == Kind::nan) return f32_nan;
  const bool negative = x.negative != y.negative;  // of the product
  if (x.kind == Kind::infinite || y.kind == Kind::infinite) {
    const Number& other = x.kind == Kind::infinite ? y : x;
    if (other.kind == Kind::finite && other.mantissa == 0) return f32_nan;
    if (z.kind == Kind::infinite && z.negative != negative) return f32_nan;
    return signed_infinity(negative);
  }
  if (z.kind == Kind::infinite) return z_bits;
  const Wide product = Wide::of(x.mantissa * y.mantissa, x.exponent + y.exponent);
  const Wide addend = Wide::of(z.mantissa, z.exponent);
  if (negative == z.negative) return round_wide(DataType::f32, negative, product.plus(addend));
  if (product.less_than(addend)) {
    return round_wide(DataType::f32, z.negative, addend.minus(product));
  }
  const Wide rest = product.minus(addend);
  return round_wide(DataType::f32, rest.top() >= 0 && negative, rest);  // x - x is +0
}

bool is_nan(DataType type, std::uint32_t bits) {
  return decode(type, bits).kind == Number::Kind::nan;
}

bool same(DataType type, std::uint32_t a, std::uint32_t b) {
  return a == b || (is_nan(type, a) && is_nan(type, b));
}

}  // namespace m2n::test
