// How a rank sleeps and is woken: one word per worker that any peer may ring, and a count of
// sleepers, so that nobody makes a system call for a rank that is awake. An event loop sleeps on a
// pipe instead (EventSet): armed, it counts as a sleeper until somebody rings. Lives in memory that
// peers map.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace m2n::transport {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// A pipe that has no name, as others of this process-id namespace find it: the descriptor of a
// process. The inode tells it from what the numbers mean once the process has closed it or ended.
struct PipePlace {
  std::uint32_t process = 0;
  std::uint32_t descriptor = 0;
  std::uint64_t inode = 0;
};
// Both ends in one descriptor, so that no write meets a pipe without a reader (a signal); or -1 and
// errno.
int open_pipe(const PipePlace& place) noexcept;

struct alignas(64) Doorbell {
  static constexpr std::uint32_t armed = 1u << 31;

  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> sleepers{0};  // how many, and `armed` if an event loop waits as well
  // The event loop's pipe; set once, before the first arm().
  std::atomic<std::uint32_t> pipe_process{0};
  std::atomic<std::uint32_t> pipe_descriptor{0};
  std::atomic<std::uint64_t> pipe_inode{0};

  // Called by peers after they have published. The publishing store must be sequentially consistent
  // (see publish), so that either the sleeper sees the word or this sees the sleeper.
  void ring() noexcept {
    if (sleepers.load(std::memory_order_seq_cst) != 0) ring_sleepers();
  }
  // Wakes whoever sleeps now, and whoever is about to sleep on what it has seen before.
  void ring_sleepers() noexcept;

  // The owner's pipe: what ring_sleepers() makes readable, once per arm().
  void set_pipe(int descriptor) noexcept;
  // The owner looks at what peers publish after this call, with acquire order: either it sees what
  // they have published, or they ring and the pipe becomes readable.
  void arm() noexcept {
    sleepers.fetch_or(armed, std::memory_order_seq_cst);
    fence_before_ready();
  }

  // Sleeps until rung, at most `limit`, unless ready() already holds. ready() must read what peers
  // publish with at least acquire order. Returns early for no reason now and then: callers loop.
  template <class Ready>
  void sleep(Ready&& ready, std::chrono::nanoseconds limit) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    fence_before_ready();
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (!ready()) wait(seen, limit);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  // ready() reads with acquire only, which some CPUs may do before the count above is visible; then
  // both sides would miss each other. ThreadSanitizer does not model fences.
  static void fence_before_ready() noexcept {
#if !defined(__SANITIZE_THREAD__)
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  void wait(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept;
  void wake_event_loop() noexcept;
};

// Plain 64-bit words in shared memory with one writer, read by others.
inline std::uint64_t load_acquire(const std::uint64_t* word) noexcept {
  return std::atomic_ref<std::uint64_t>{*const_cast<std::uint64_t*>(word)}.load(
      std::memory_order_acquire);
}
inline void store_release(std::uint64_t* word, std::uint64_t value) noexcept {
  std::atomic_ref<std::uint64_t>{*word}.store(value, std::memory_order_release);
}
// Publishes everything written before, with a full fence behind it: ring the doorbell next.
// Streaming stores must have been fenced by whoever made them.
inline void publish(std::uint64_t* word, std::uint64_t value) noexcept {
  std::atomic_ref<std::uint64_t>{*word}.exchange(value, std::memory_order_seq_cst);
}

}  // namespace m2n::transport
