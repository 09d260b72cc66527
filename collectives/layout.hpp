// Where everything lies in a window: pure arithmetic over sizes, checked for overflow.
//
// The window that a rank registers for one peer (one pair, one direction) is
//   control block | depth slots
// and a slot is a header line and a body. Bodies begin at a rotating offset, so that a cache line
// comes back after a few MiB whatever the size of a round: lines that left the writer's L2 are
// cheap to write again, lines that the reader's L2 still holds are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "m2n/config.hpp"
#include "m2n/status.hpp"

namespace m2n::collectives {

// How one payload row lies in a slot: arrays one after the other, each aligned to 16 bytes.
struct RowGeometry {
  std::vector<std::size_t> offsets_bytes;
  std::vector<std::size_t> sizes_bytes;
  std::size_t stride_bytes = 0;  // a multiple of 64
};

// One direction of one pair.
struct WindowLayout {
  std::uint32_t depth = 0;
  std::size_t control_bytes = 0;
  std::size_t slot_bytes = 0;      // header and body area, a multiple of 4096
  std::size_t max_body_bytes = 0;  // of the largest round
  std::size_t max_rows = 0;
  std::size_t max_entries = 0;
  std::size_t row_bytes = 0;

  std::size_t slot_offset(std::uint64_t round) const noexcept {
    return control_bytes + static_cast<std::size_t>(round % depth) * slot_bytes;
  }
  std::size_t window_bytes() const noexcept { return control_bytes + depth * slot_bytes; }
};

// One process keeps about this much in rotation per direction, over all its pairs and slots.
inline constexpr std::size_t rotation_bytes = std::size_t{4} << 20;

Result<RowGeometry> row_geometry(const ChannelConfig& config);

// Rows on their way to expert ranks. `peers` = expert ranks that one attention rank writes to.
Result<WindowLayout> dispatch_window(const ChannelConfig& config, std::uint32_t peers);

// Reply rows. `peers` = attention ranks that one expert rank writes to; local_experts of that
// expert rank.
Result<WindowLayout> reply_window(const ChannelConfig& config, std::uint32_t peers,
                                  std::uint32_t local_experts);

// Bytes of the largest grouped or packed batch.
struct GroupedLayout {
  std::size_t rows = 0;
  std::size_t bytes = 0;
};
Result<GroupedLayout> grouped_layout(const ChannelConfig& config, std::uint32_t attention_ranks,
                                     std::uint32_t local_experts);

}  // namespace m2n::collectives
