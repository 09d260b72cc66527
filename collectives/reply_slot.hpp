// Where the reply to one source of a batch goes, and how far it is. Kept with the batch: a source's
// next round may be in another batch before this one is used up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/slot.hpp"

namespace m2n::collectives {

class PairLink;

struct ReplySlot {
  SlotHeader header;
  PairLink* link = nullptr;
  std::uint32_t peer = 0;  // attention rank
  std::uint64_t round = 0;
  std::byte* rows = nullptr;
  std::size_t row_lines = 0;    // cache lines of one row
  std::size_t piece_lines = 0;  // after which the reader is told
  std::size_t told_lines = 0;
  std::uint32_t next_row = 0;
  std::uint32_t next_pair = 0;
  bool streaming = false;
  bool begun = false;
  bool done = false;
};

}  // namespace m2n::collectives
