// Points at which a test may step in: to delay a rank, to damage a slot, to count. One load each
// when unused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace m2n::collectives {

enum class HookPoint : std::uint8_t {
  pre_send,            // attention: before the first byte of a round is written
  piece_told,          // attention: the receiver may take some of the rows
  header_written,      // attention: the slot is complete, its signal is not raised yet
  flag_seen_pre_copy,  // expert: all words of a batch were seen, its slots were not read yet
  pre_combine_send,    // expert: before the first byte of a reply is written
  flag_seen_pre_read,  // attention: a reply's header may be read and was not yet
  pre_ack,             // attention: combine has summed, the credits are not free yet
  pre_close,
  yield,  // a waiting call yields its core, or
  sleep,  // sleeps on the doorbell
};

struct HookEvent {
  HookPoint point{};
  std::uint32_t world_rank = 0;
  std::uint32_t peer = 0;  // role rank, where there is one
  std::uint64_t round = 0;
  std::byte* slot = nullptr;  // header_written, flag_seen_pre_read
  std::size_t slot_bytes = 0;
};

struct Hook {
  void (*call)(void* context, const HookEvent& event) = nullptr;
  void* context = nullptr;
};

// Process-wide. Change them while no rank is inside a call.
inline std::atomic<const Hook*> test_hook{nullptr};
// Rounds of channels opened from now on begin here (mapped pairs; a multiple of every depth in
// use).
inline std::atomic<std::uint64_t> test_first_round{0};

// Streaming stores wherever they can be used, whatever a row costs.
inline std::atomic<bool> test_streaming{false};

inline void at(const HookEvent& event) {
  if (const Hook* hook = test_hook.load(std::memory_order_relaxed); hook != nullptr) [[unlikely]] {
    hook->call(hook->context, event);
  }
}

}  // namespace m2n::collectives
