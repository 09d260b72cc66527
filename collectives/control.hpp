// Small messages between the two ends of a pair: in order, never lost, never waited for. One ring
// of 16 slots per direction, each slot with its own word, given back by the `taken` word. Used off
// the hot path.
#pragma once

#include <cstddef>
#include <cstdint>

namespace m2n::collectives {

enum class ControlType : std::uint32_t {
  drained =
      1,       // the sender has finished with body[0] rounds of this pair; body[1] = how often said
  close = 2,   // the sender's end is closed; nothing more comes
  pieces = 3,  // body[0] = pieces the sender needs, or the answer
};

struct ControlMessage {
  ControlType type{};
  std::uint32_t epoch = 0;
  std::uint32_t channel = 0;
  std::uint32_t bytes = 0;  // of body in use
  std::uint64_t body[4] = {};
};
static_assert(sizeof(ControlMessage) == 48);

inline ControlMessage message_of(ControlType type) {
  ControlMessage message;
  message.type = type;
  return message;
}

struct alignas(64) ControlSlot {
  std::uint64_t word = 0;  // message / ring size + 1 once slot (message mod ring size) holds it
  std::uint64_t unused = 0;
  ControlMessage message;
};
static_assert(sizeof(ControlSlot) == 64);

inline constexpr std::uint32_t control_ring = 16;

// At the start of every window; written by the peer.
struct ControlBlock {
  ControlSlot slots[control_ring];
  // Messages of *this* side that the peer has taken; written by the peer.
  alignas(64) std::uint64_t taken = 0;
  std::uint64_t unused[7] = {};
};
static_assert(sizeof(ControlBlock) == (control_ring + 1) * 64);

}  // namespace m2n::collectives
