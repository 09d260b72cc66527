// What an event loop polls for one worker: one epoll descriptor over a pipe that whoever rings
// writes to (see Doorbell), the peers that may die, and a timer that bounds what a lost ring costs.
// Owned by a transport instance, used by its thread. Nothing of it is there until it is asked for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "m2n/status.hpp"
#include "transport/doorbell.hpp"

namespace m2n::transport {

class EventSet {
 public:
  // What an epoll_event of descriptor() carries as data.u64: why the event loop woke.
  enum class Source : std::uint64_t { arrival, recheck, death };

  EventSet(const EventSet&) = delete;
  EventSet& operator=(const EventSet&) = delete;
  // In a process that was forked from the owner it leaves everything alone.
  ~EventSet();

  // `system` where descriptors or /proc are missing. `rank` is for the text.
  static Result<std::unique_ptr<EventSet>> make(std::int32_t rank);

  int descriptor() const noexcept { return epoll_; }
  int pipe() const noexcept { return pipe_; }
  // A process handle that is readable once its process has ended, until forgotten. Without memory
  // for it the re-check has to do.
  void watch(int process) noexcept;
  void forget(int process) noexcept;
  // Nothing is readable any more but the dead. Arms the re-check, 0 = none.
  void drain(std::chrono::nanoseconds recheck) noexcept;

 private:
  EventSet();
  bool add(int descriptor, Source source) noexcept;
  bool open() noexcept;

  pid_t owner_pid_;
  int epoll_ = -1;
  int pipe_ = -1;  // both ends
  int timer_ = -1;
};

}  // namespace m2n::transport
