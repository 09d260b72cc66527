// What travels: a slot is one header line and a body (row information, then rows). docs/wire.md
// tells the same in words. Read and written by the two ends of a pair, each by its one writer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "m2n/batch.hpp"

namespace m2n::collectives {

enum class ReplyStatus : std::uint8_t { ok = 0, unserved = 1, stale = 2, invalid = 3 };

namespace flag {
inline constexpr std::uint8_t index_list =
    1;  // rows lie in the sender's arena; the body ends in an index
inline constexpr std::uint8_t streaming = 2;  // streaming stores were used; answer alike
}  // namespace flag

struct alignas(64) SlotHeader {
  std::uint64_t word = 0;  // the slot's signal: round / depth + 1 once the round is complete
  // Mapped pairs only: (round / depth + 1) << 32 | 1 + cache lines of the rows that are complete;
  // the header and the row information are, too.
  std::uint64_t filled = 0;
  std::uint64_t operation = 0;
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t placement_version = 0;
  std::uint16_t placement_hash = 0;
  ReplyStatus status = ReplyStatus::ok;
  std::uint8_t flags = 0;
  std::uint32_t rows = 0;
  std::uint32_t entries = 0;
  std::uint64_t body_offset = 0;  // from the slot's begin; a multiple of 64
  std::uint64_t gathered =
      0;  // reply slots: the dispatched rows of this round were copied (mapped)
};
static_assert(sizeof(SlotHeader) == 64 && offsetof(SlotHeader, operation) == 16);
static_assert(sizeof(RowInfo) == 8 && sizeof(Entry) == 8);

// A put carries the header from here on; words in front of it are signals.
inline constexpr std::size_t put_offset = offsetof(SlotHeader, operation);

// Bytes of row information in front of `rows` rows: rows + 1 RowInfo (the last one closes the
// list), the entries, and padding so that rows begin on a cache line. Nothing for an empty round.
constexpr std::size_t info_bytes(std::size_t rows, std::size_t entries) noexcept {
  if (rows == 0) return 0;
  return ((rows + 1) * sizeof(RowInfo) + entries * sizeof(Entry) + 63) & ~std::size_t{63};
}

// With flag::index_list the rows are replaced by one 32-bit row number of the sender's arena each.
constexpr std::size_t index_bytes(std::size_t rows) noexcept {
  return (rows * sizeof(std::uint32_t) + 63) & ~std::size_t{63};
}

}  // namespace m2n::collectives
