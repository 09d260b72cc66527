// Who may use which slot: the credits of one pair (or, in lockstep, of all pairs at once). Pure
// state.
//
// A credit is the right to use slot (round mod depth) of the peer in both directions. It is local:
// round r may be issued once this rank has finished reading the reply of round r - depth. Rounds
// are consumed contiguously: finishing round 1 before round 0 frees nothing.
#pragma once

#include <cstdint>

namespace m2n::collectives {

class Ledger {
 public:
  static constexpr std::uint32_t max_depth = 64;

  explicit Ledger(std::uint32_t depth, std::uint64_t first_round = 0) noexcept
      : depth_{depth}, issued_{first_round}, consumed_{first_round} {}

  bool has_credit() const noexcept { return issued_ - consumed_ < depth_; }
  // The round number that the next issue() gives.
  std::uint64_t next() const noexcept { return issued_; }
  std::uint64_t issue() noexcept { return issued_++; }

  // The combine of `round` has finished reading its replies.
  void finish(std::uint64_t round) noexcept {
    finished_ |= std::uint64_t{1} << (round - consumed_);
    while ((finished_ & 1) != 0) {
      finished_ >>= 1;
      ++consumed_;
    }
  }

  std::uint64_t issued() const noexcept { return issued_; }
  std::uint64_t consumed() const noexcept { return consumed_; }

 private:
  std::uint32_t depth_;
  std::uint64_t issued_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t finished_ = 0;  // bit i: round consumed_ + i is finished
};

}  // namespace m2n::collectives
