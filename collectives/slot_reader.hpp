// Reading a dispatch slot that a peer wrote: nothing is believed before it has been checked. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "collectives/slot.hpp"
#include "m2n/batch.hpp"

namespace m2n::collectives {

// What this rank knows without asking the slot.
struct SlotLimits {
  std::size_t slot_bytes = 0;
  std::size_t max_rows = 0;
  std::size_t max_entries = 0;
  std::size_t max_row_entries = 0;  // entries of one token
  std::size_t row_bytes = 0;
  std::uint32_t local_experts = 0;
  const std::byte* arena = nullptr;  // of the sender, or null
  std::size_t arena_rows = 0;
};

// Fills in the views of `source` (rows, entries, pairs, base, index), listing the distinct (row,
// local expert) in `pairs`, which has room for max_rows times the most distinct experts of a token.
// Empty when all is well; else what is wrong, and `source` holds no view.
std::string read_slot(const std::byte* slot, const SlotLimits& limits, std::span<Pair> pairs,
                      BatchSource& source);

}  // namespace m2n::collectives
