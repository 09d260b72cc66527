// Points at which a test may step in: to delay a rank, to count, to stop. Costs one load when
// unused.
#pragma once

#include <atomic>
#include <cstdint>

namespace m2n::collectives {

enum class HookPoint : std::uint8_t {
  pre_send,            // dispatch has packed and is about to publish
  flag_seen_pre_copy,  // receive has seen all words and has not read the slots yet
  pre_reply,           // reply is about to write
  pre_combine_read,    // combine has seen a reply complete and has not read it yet
  pre_close,
};

using Hook = void (*)(std::uint32_t world_rank, HookPoint point);

// Process-wide; set it while no rank is inside a call.
inline std::atomic<Hook> test_hook{nullptr};

inline void at(std::uint32_t world_rank, HookPoint point) {
  if (const Hook hook = test_hook.load(std::memory_order_relaxed); hook != nullptr) [[unlikely]] {
    hook(world_rank, point);
  }
}

}  // namespace m2n::collectives
