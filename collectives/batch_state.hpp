// What stands behind a Batch: its sources, their rounds, and, for grouped layouts, where each row
// went. Sized when the channel opens; owned by the expert end, used by its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/reply_slot.hpp"
#include "m2n/batch.hpp"

namespace m2n {

struct BatchState {
  bool in_use = false;
  std::vector<BatchSource> sources;             // capacity M
  std::vector<std::uint64_t> rounds;            // per source: its pair's round
  std::vector<collectives::ReplySlot> replies;  // per source
  std::size_t answered = 0;                     // sources that have been replied to in full
  GroupedRows grouped;
  bool is_grouped = false;
  std::vector<std::uint32_t> counts;    // [local experts]
  std::vector<std::size_t> first_row;   // [local experts]
  std::vector<std::size_t> cursor;      // [local experts]
  std::vector<std::int32_t> source_of;  // [grouped rows]
  std::vector<std::uint32_t> row_of;    // [grouped rows]
  std::byte* memory = nullptr;          // grouped rows, when the caller gives none
};

}  // namespace m2n
