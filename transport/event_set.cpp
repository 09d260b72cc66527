#include "transport/event_set.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "transport/text.hpp"

namespace m2n::transport {

EventSet::EventSet() : owner_pid_{getpid()} {}

EventSet::~EventSet() {
  if (getpid() != owner_pid_) return;  // a forked child's descriptors may be something else
  for (const int descriptor : {epoll_, pipe_, timer_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

bool EventSet::add(int descriptor, Source source) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(source);
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

// False and errno.
bool EventSet::open() noexcept {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return false;
  // One descriptor for both ends, made in the way in which peers will reach it.
  struct stat made {};
  if (fstat(ends[0], &made) == 0) {
    pipe_ = open_pipe(
        {static_cast<std::uint32_t>(owner_pid_), static_cast<std::uint32_t>(ends[0]), made.st_ino});
  }
  const int error = errno;
  close(ends[0]);
  close(ends[1]);
  errno = error;
  if (pipe_ < 0) return false;
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer_ < 0) return false;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  return epoll_ >= 0 && add(pipe_, Source::arrival) && add(timer_, Source::recheck);
}

Result<std::unique_ptr<EventSet>> EventSet::make(std::int32_t rank) {
  std::unique_ptr<EventSet> set{new EventSet};
  if (set->open()) return set;
  return refuse({"event_descriptor", "descriptors", std::generic_category().message(errno),
                 "3 more per worker, and /proc", rank, "ulimit -n"},
                Code::system);
}

void EventSet::watch(int process) noexcept {
  add(process, Source::death);
}

void EventSet::forget(int process) noexcept {
  // Closing is not enough: a forked child's copy would keep it here.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, process, nullptr);
}

void EventSet::drain(std::chrono::nanoseconds recheck) noexcept {
  std::array<char, 64> bytes;  // one per arming; what is left shows again
  static_cast<void>(!read(pipe_, bytes.data(), bytes.size()));
  itimerspec limit{};
  limit.it_value.tv_sec = static_cast<time_t>(recheck.count() / 1'000'000'000);
  limit.it_value.tv_nsec = static_cast<long>(recheck.count() % 1'000'000'000);
  timerfd_settime(timer_, 0, &limit, nullptr);
}

}  // namespace m2n::transport
