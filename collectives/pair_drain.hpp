// When a pair is drained: both sides have finished with the same number of rounds, and say so. Pure
// state, one per pair and end.
//
// A side says (rounds, count): the rounds of this pair it has finished with, and the how manieth of
// its words at that number this is. A drain that is ok has used one word of the peer, which none
// before it has used; one that timed out, for this peer or another, has used none, though its own
// word may have been enough for the peer. So a call says another word unless the peer still has one
// to use: all words before it are as many as the peer's at least. The two counts are never more
// than one apart.
#pragma once

#include <algorithm>
#include <cstdint>

namespace m2n::collectives {

class PairDrain {
 public:
  struct Words {
    std::uint64_t rounds = 0;
    std::uint64_t count = 0;
  };

  // A call of drain begins; this side has finished with so many rounds.
  void begin(std::uint64_t rounds) noexcept {
    if (said_.rounds != rounds) {
      said_ = {rounds, 0};
      used_ = 0;
    }
    heard_before_ = heard();
    owes_ = said_.count <= heard_before_;
  }
  // This call has still to say words().
  bool owes() const noexcept { return owes_; }
  Words words() const noexcept { return {said_.rounds, said_.count + 1}; }
  void said() noexcept {
    ++said_.count;
    owes_ = false;
  }
  void heard(const Words& words) noexcept { heard_ = words; }
  // Both sides have said it.
  bool agreed() const noexcept { return !owes_ && heard() > used_; }
  // The call is ok, for all pairs. Words from before it count as one: a peer that timed out says
  // some in vain. What came since may be of two drains already.
  void finish() noexcept { used_ = std::max(heard_before_, used_ + 1); }

 private:
  std::uint64_t heard() const noexcept { return heard_.rounds == said_.rounds ? heard_.count : 0; }

  Words said_;
  Words heard_;
  std::uint64_t used_ = 0;  // of the peer's words at said_.rounds
  std::uint64_t heard_before_ = 0;
  bool owes_ = false;
};

}  // namespace m2n::collectives
