// Time stamps of one operation at one rank.
#pragma once

#include <time.h>

#include <cstdint>

namespace m2n::perf {

// Nanoseconds of the one clock of this host.
inline std::uint64_t now_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// Attention ranks fill start and end (of combine), expert ranks readable, reply and end.
struct Record {
  std::uint64_t start = 0;
  std::uint64_t readable = 0;
  std::uint64_t reply = 0;
  std::uint64_t end = 0;
  std::uint64_t produce = 0;  // time to write x, not a time stamp
};

}  // namespace m2n::perf
