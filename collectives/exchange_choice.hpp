// exchange = automatic, x outside the arena: copy each row into the window of every expert rank
// that needs it, or once into the arena, from where they read it? Both ways are timed as they are
// used, and the other one is tried now and then. Pure state; the caller has the clock.
#pragma once

#include <cstdint>

namespace m2n::collectives {

class ExchangeChoice {
 public:
  static constexpr std::uint32_t interval = 256;  // operations until the other way is tried
  static constexpr std::uint32_t tries = 3;       // in a row: the first one finds cold memory
  static constexpr std::uint32_t first_try = 4;
  static constexpr double least_fan_out = 1.25;  // below this copying once cannot win
  static constexpr double margin = 1.1;          // reading elsewhere has its price

  // For an operation of `tokens` tokens that need `rows` rows in all windows together.
  bool copy_once(std::uint32_t tokens, std::uint64_t rows) noexcept {
    if (static_cast<double>(rows) < least_fan_out * tokens) return false;
    const bool try_other = operations_++ % interval - first_try < tries;  // unsigned
    if (push_ns_ == 0 || once_ns_ == 0) return push_ns_ != 0 && try_other;
    const bool once = margin * once_ns_ * tokens < push_ns_ * static_cast<double>(rows);
    return once != try_other;
  }
  // What a row took, pushed or copied into the arena.
  void pushed(std::uint64_t rows, std::uint64_t ns) noexcept { take(push_ns_, rows, ns); }
  void copied(std::uint64_t rows, std::uint64_t ns) noexcept { take(once_ns_, rows, ns); }
  double push_row_ns() const noexcept { return push_ns_; }
  double once_row_ns() const noexcept { return once_ns_; }

 private:
  static void take(double& mean, std::uint64_t rows, std::uint64_t ns) noexcept {
    if (rows == 0) return;
    const double now = static_cast<double>(ns) / static_cast<double>(rows);
    mean = mean == 0 ? now : mean + (now - mean) / 2;
  }

  double push_ns_ = 0;
  double once_ns_ = 0;
  std::uint32_t operations_ = 0;
};

}  // namespace m2n::collectives
