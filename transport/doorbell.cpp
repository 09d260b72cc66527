#include "transport/doorbell.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>

namespace m2n::transport {

static long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
                  const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit,
                 nullptr, 0);
}

static bool is_pipe(const struct stat& found, const PipePlace& place) {
  return S_ISFIFO(found.st_mode) && found.st_ino == place.inode;
}

int open_pipe(const PipePlace& place) noexcept {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%u/fd/%u", place.process, place.descriptor);
  // Looked at first: opening what somebody else has there could do something.
  struct stat found {};
  if (stat(path.data(), &found) != 0) return -1;
  errno = ENXIO;
  if (!is_pipe(found, place)) return -1;
  const int pipe = open(path.data(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (pipe < 0 || (fstat(pipe, &found) == 0 && is_pipe(found, place))) return pipe;
  close(pipe);
  errno = ENXIO;
  return -1;
}

void Doorbell::set_pipe(int descriptor) noexcept {
  struct stat found {};
  if (fstat(descriptor, &found) != 0) return;
  pipe_process.store(static_cast<std::uint32_t>(getpid()), std::memory_order_relaxed);
  pipe_descriptor.store(static_cast<std::uint32_t>(descriptor), std::memory_order_relaxed);
  pipe_inode.store(found.st_ino, std::memory_order_relaxed);  // arm() publishes them
}

// Opened for each ring: a descriptor per peer would be held for the few that sleep. A ring that
// cannot get through costs the owner its re-check.
void Doorbell::wake_event_loop() noexcept {
  const PipePlace place{pipe_process.load(std::memory_order_relaxed),
                        pipe_descriptor.load(std::memory_order_relaxed),
                        pipe_inode.load(std::memory_order_relaxed)};
  if (place.inode == 0) return;
  const int pipe = open_pipe(place);
  if (pipe < 0) return;
  static_cast<void>(!write(pipe, "", 1));  // full = readable already
  close(pipe);
}

void Doorbell::ring_sleepers() noexcept {
  word.fetch_add(1, std::memory_order_seq_cst);
  // An event loop is told once; who sleeps on the word stays counted until it has woken.
  const std::uint32_t before = sleepers.fetch_and(~armed, std::memory_order_seq_cst);
  if ((before & ~armed) != 0) futex(word, FUTEX_WAKE, INT_MAX, nullptr);
  if ((before & armed) != 0) wake_event_loop();
}

void Doorbell::wait(std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  if (limit.count() <= 0) return;
  timespec time{};
  time.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  futex(word, FUTEX_WAIT, seen, &time);  // EINTR, EAGAIN, ETIMEDOUT: the caller loops
}

}  // namespace m2n::transport
