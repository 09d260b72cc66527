// The memory that x may live in, so that expert ranks read it in place: one per attention end of a
// channel with exchange = shared, mapped by every expert rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/arena_ring.hpp"
#include "m2n/config.hpp"
#include "transport/transport.hpp"

namespace m2n::collectives {

struct ArenaMemory {
  std::byte* base = nullptr;
  std::uint32_t rows = 0;
  std::size_t stride_bytes = 0;
  transport::MemoryId memory{};
  std::unique_ptr<ArenaRing> ring;

  // Row number of an address inside, or ArenaRing::none.
  std::uint32_t row_of(const void* address) const noexcept {
    const auto* at = static_cast<const std::byte*>(address);
    if (base == nullptr || at < base || at >= base + std::size_t{rows} * stride_bytes)
      return ArenaRing::none;
    const std::size_t offset = static_cast<std::size_t>(at - base);
    return offset % stride_bytes != 0 ? ArenaRing::none
                                      : static_cast<std::uint32_t>(offset / stride_bytes);
  }
};

// Rows of an arena: what depth operations need at once, twice, and at least the rotation of a
// window.
std::size_t arena_rows(const ChannelConfig& config, std::size_t stride_bytes) noexcept;

}  // namespace m2n::collectives
