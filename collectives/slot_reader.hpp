// Reading a dispatch slot that a peer wrote: nothing is believed before it has been checked. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "collectives/slot.hpp"
#include "m2n/batch.hpp"
#include "m2n/placement.hpp"

namespace m2n::collectives {

// Which placement a round was routed with, as far as a header says.
struct PlacementTag {
  std::uint32_t version = 0;
  std::uint16_t hash = 0;  // low bits of Placement::hash()
};
inline PlacementTag tag_of(const Placement& placement) noexcept {
  return {placement.version(), static_cast<std::uint16_t>(placement.hash())};
}
// The one place that decides whether a round routed with `theirs` may be believed by a rank that
// knows `ours`.
constexpr bool accepts(const PlacementTag& ours, const PlacementTag& theirs) noexcept {
  return ours.version == theirs.version && ours.hash == theirs.hash;
}

// What this rank knows without asking the slot.
struct SlotLimits {
  PlacementTag placement;
  std::size_t slot_bytes = 0;
  std::size_t max_rows = 0;
  std::size_t max_entries = 0;
  std::size_t max_row_entries = 0;  // entries of one token
  std::size_t row_bytes = 0;
  std::uint32_t local_experts = 0;
  const std::byte* arena = nullptr;  // of the sender, or null
  std::size_t arena_rows = 0;
};

// What is kept apart from the slot, which its writer may change at any time: whoever follows these
// stays inside.
struct SlotRoom {
  std::span<Pair> pairs;           // max_rows times the most distinct experts of a token
  std::span<std::uint32_t> index;  // max_rows, where there is an arena
  // Per local expert: the last row it was seen in, by a number that no row has twice.
  std::span<std::uint64_t> stamps;
  std::uint64_t& stamp;
};

// Fills in the views of `source` (rows, entries, pairs, base, index), listing the distinct (row,
// local expert) and the arena's rows in `room`. Empty when all is well; else what is wrong, and
// `source` holds no view.
std::string read_slot(const std::byte* slot, const SlotLimits& limits, const SlotRoom& room,
                      BatchSource& source);

}  // namespace m2n::collectives
