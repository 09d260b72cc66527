// When a pair is drained: both sides have finished with the same number of rounds, and say so. Pure
// state, one per pair and end.
//
// A side says (rounds, times): the rounds of this pair it has finished with, and how many drains at
// that number it has completed before. A side that goes on after a drain that timed out has other
// rounds the next time and speaks again; what was said before is no answer to that.
#pragma once

#include <cstdint>

namespace m2n::collectives {

class PairDrain {
 public:
  struct Words {
    std::uint64_t rounds = 0;
    std::uint64_t times = 0;
    friend bool operator==(const Words&, const Words&) = default;
  };

  // What this side says when it has finished with so many rounds.
  Words words(std::uint64_t rounds) const noexcept {
    return {rounds, rounds == done_.rounds ? done_.times : 0};
  }
  bool has_said(std::uint64_t rounds) const noexcept { return said_any_ && said_ == words(rounds); }
  void said(const Words& words) noexcept {
    said_any_ = true;
    said_ = words;
  }
  void heard(const Words& words) noexcept {
    heard_any_ = true;
    heard_ = words;
  }
  // Both sides have said it. A peer that is further on with the same rounds has said it before.
  bool agreed(std::uint64_t rounds) const noexcept {
    const Words now = words(rounds);
    return has_said(rounds) && heard_any_ && heard_.rounds == rounds && heard_.times >= now.times;
  }
  // The drain is over for all pairs: the next one needs new words.
  void finish(std::uint64_t rounds) noexcept {
    const Words now = words(rounds);
    done_ = {rounds, now.times + 1};
  }

 private:
  Words said_;
  Words heard_;
  Words done_;  // drains completed at the latest number of rounds
  bool said_any_ = false;
  bool heard_any_ = false;
};

}  // namespace m2n::collectives
