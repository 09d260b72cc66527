// How a call waits: spin, then yield, then sleep on the worker's doorbell, until something happens
// or the deadline passes. Every waiting call of the library is this loop around its try_ form.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "collectives/hooks.hpp"
#include "collectives/worker.hpp"
#include "m2n/status.hpp"
#include "m2n/types.hpp"

namespace m2n::collectives {

using Clock = std::chrono::steady_clock;

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long each stage lasts.
struct WaitPolicy {
  std::chrono::nanoseconds spin{50'000};
  std::chrono::nanoseconds yield{1'000'000};
  std::chrono::nanoseconds sleep_limit{20'000'000};  // a lost wake-up costs no more than this
  bool adapts = false;                               // spins only while that pays

  static WaitPolicy make(Wait wait, bool oversubscribed) noexcept {
    using std::chrono::nanoseconds;
    constexpr nanoseconds forever = nanoseconds::max();
    switch (wait) {
      case Wait::spin:
        return {forever, nanoseconds{0}};
      case Wait::yield:
        return {nanoseconds{0}, forever};
      case Wait::sleep:
        return {nanoseconds{0}, nanoseconds{0}};
      case Wait::automatic:
        break;
    }
    // Whoever is waited for may need this very core.
    if (oversubscribed) return {nanoseconds{0}, nanoseconds{4'000'000}};
    WaitPolicy policy;
    policy.adapts = true;
    return policy;
  }
};

class Deadline {
 public:
  // `standard` is what Timeout{} means; 0 and never() mean no deadline.
  Deadline(Timeout timeout, std::chrono::nanoseconds standard) noexcept : start_{Clock::now()} {
    const std::chrono::nanoseconds after = timeout.is_standard() ? standard : timeout.after();
    never_ = timeout.is_never() || (timeout.is_standard() && standard.count() == 0) ||
             after > Clock::time_point::max() - start_;
    end_ = never_ ? Clock::time_point::max() : start_ + after;
  }
  bool passed(Clock::time_point now) const noexcept { return !never_ && now >= end_; }
  std::chrono::nanoseconds left(Clock::time_point now) const noexcept {
    return never_ ? std::chrono::nanoseconds::max() : end_ - now;
  }
  Clock::time_point start() const noexcept { return start_; }

 private:
  Clock::time_point start_;
  Clock::time_point end_;
  bool never_ = false;
};

// Calls step() until it returns anything but `again`; Code::timeout when the deadline passes first.
// idle() is called now and then once spinning has not helped: it pumps, and looks for dead peers.
template <class Step, class Idle>
Status wait_until(Worker& worker, const WaitPolicy& policy, const Deadline& deadline, Step&& step,
                  Idle&& idle) {
  const bool spins = policy.spin.count() > 0 && (!policy.adapts || worker.spin_record().pays());
  const int first_tries = spins ? 64 : 2;
  for (int i = 0; i < first_tries; ++i) {
    if (Status status = step(); status.code() != Code::again) {
      if (spins) worker.spin_record().ended(true);
      return status;
    }
    pause();
  }
  const Clock::time_point spin_start = Clock::now();
  for (std::uint32_t round = 0; spins; ++round) {
    Status status = step();
    if (status.code() != Code::again) {
      worker.spin_record().ended(true);
      return status;
    }
    if (round % 32 != 0) {
      pause();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (deadline.passed(now)) break;  // after one look at messages and peers
    if (now - spin_start < policy.spin) {
      if (round % 1024 == 0) idle();
      continue;
    }
    worker.spin_record().ended(false);
    break;
  }
  const Clock::time_point yield_start = Clock::now();
  for (std::uint32_t round = 0;; ++round) {
    if (round % 16 == 0 || worker.has_pending()) idle();
    Status status = step();
    if (status.code() != Code::again) return status;
    const Clock::time_point now = Clock::now();
    if (deadline.passed(now)) return Code::timeout;
    if (now - yield_start < policy.yield || worker.has_pending()) {
      at({HookPoint::yield, worker.world_rank()});
      sched_yield();
      continue;
    }
    const std::chrono::nanoseconds limit = std::min(policy.sleep_limit, deadline.left(now));
    at({HookPoint::sleep, worker.world_rank()});
    const auto ready = [&] {
      idle();  // a message rings only those who already sleep
      return (status = step()).code() != Code::again;
    };
    worker.transport().doorbell().sleep(ready, limit);
    if (status.code() != Code::again) return status;
    round = ~0u;  // messages may be what woke us
  }
}

}  // namespace m2n::collectives
