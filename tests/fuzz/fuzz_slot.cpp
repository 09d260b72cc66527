// What a peer writes into a dispatch slot: whatever it is, the reader stays inside the slot, and
// what it accepts can be walked safely.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "collectives/slot_reader.hpp"

using namespace m2n;
using namespace m2n::collectives;

namespace {

SlotLimits limits_of(std::size_t slot_bytes) {
  SlotLimits limits;
  limits.slot_bytes = slot_bytes;
  limits.max_rows = 8;
  limits.max_entries = 32;
  limits.max_row_entries = 4;
  limits.row_bytes = 64;
  limits.local_experts = 5;
  limits.arena_rows = 16;
  return limits;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t slot_bytes = 1024;
  if (size < sizeof(SlotHeader)) return 0;
  // On the heap and of exactly this size, so that the sanitizer sees any step outside.
  auto* slot = static_cast<std::byte*>(::operator new (slot_bytes, std::align_val_t{64}));
  std::memset(slot, 0, slot_bytes);
  std::memcpy(slot, data, size < slot_bytes ? size : slot_bytes);
  std::vector<std::byte> arena(16 * 64);
  SlotLimits limits = limits_of(slot_bytes);
  limits.arena = arena.data();
  std::vector<Pair> pairs(8 * 4);
  std::vector<std::uint32_t> index(8);
  std::vector<std::uint64_t> stamps(limits.local_experts);
  std::uint64_t stamp = 0;
  BatchSource source;
  std::uint64_t sum = 0;
  if (read_slot(slot, limits, {pairs, index, stamps, stamp}, source).empty()) {
    for (std::uint32_t row = 0; row < source.rows; ++row) {
      for (int i = 0; i < 64; ++i) sum += std::to_integer<unsigned>(source.payload(row)[i]);
      for (std::uint32_t e = source.row[row].first_entry; e < source.row[row + 1].first_entry;
           ++e) {
        if (source.entries[e].local_expert() >= limits.local_experts) __builtin_trap();
        sum += source.entries[e].expert_bits;
      }
    }
    for (const Pair& pair : source.pairs) {
      if (pair.row >= source.rows || pair.local_expert >= limits.local_experts) __builtin_trap();
    }
  }
  volatile std::uint64_t sink = sum;
  static_cast<void>(sink);
  ::operator delete (slot, std::align_val_t{64});
  return 0;
}
