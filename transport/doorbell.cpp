#include "transport/doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace m2n::transport {

static long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
                  const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit,
                 nullptr, 0);
}

void Doorbell::ring_sleepers() noexcept {
  word.fetch_add(1, std::memory_order_seq_cst);
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  if (limit.count() <= 0) return;
  timespec time{};
  time.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  futex(word, FUTEX_WAIT, seen, &time);  // EINTR, EAGAIN, ETIMEDOUT: the caller loops
}

}  // namespace m2n::transport
