// Sizes that a user's configuration may make larger than memory. Pure.
#pragma once

#include <cstddef>

namespace m2n::collectives {

// Arithmetic that remembers an overflow.
class Checked {
 public:
  std::size_t add(std::size_t a, std::size_t b) noexcept {
    std::size_t sum = 0;
    overflow_ |= __builtin_add_overflow(a, b, &sum);
    return sum;
  }
  std::size_t multiply(std::size_t a, std::size_t b) noexcept {
    std::size_t product = 0;
    overflow_ |= __builtin_mul_overflow(a, b, &product);
    return product;
  }
  std::size_t align(std::size_t a, std::size_t to) noexcept { return add(a, to - 1) / to * to; }
  bool overflow() const noexcept { return overflow_; }

 private:
  bool overflow_ = false;
};

}  // namespace m2n::collectives
