// Remembers whether spinning pays. A core that others need as well, or a peer that computes, makes
// it vain: then waits begin with yielding at once, and one in a few tries again. Pure state.
#pragma once

#include <cstdint>

namespace m2n::collectives {

class SpinRecord {
 public:
  bool pays() noexcept { return vain_ < limit || ++waits_ % retry == 0; }
  void ended(bool in_time) noexcept {
    if (in_time) vain_ = 0;
    if (!in_time && vain_ < limit) ++vain_;
  }

 private:
  static constexpr std::uint32_t limit = 8;
  static constexpr std::uint32_t retry = 16;
  std::uint32_t vain_ = 0;  // in a row
  std::uint32_t waits_ = 0;
};

}  // namespace m2n::collectives
