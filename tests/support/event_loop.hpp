// A rank that sleeps in epoll alone, as a serving framework does, and tells a wake-up that was lost
// from a peer that is late. Used by the rank's thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "m2n/m2n.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/ranks.hpp"
#include "transport/event_set.hpp"

namespace m2n::testing {

class EventLoop {
 public:
  explicit EventLoop(Group& group)
      : group_{group}, own_{epoll_create1(EPOLL_CLOEXEC)}, other_{eventfd(0, EFD_CLOEXEC)} {
    const Result<int> made = group.event_descriptor();
    EXPECT_TRUE(bool(made)) << made.status().text();
    if (made) events_ = *made;
    for (const int descriptor : {events_, other_}) {
      epoll_event event{EPOLLIN, {}};
      event.data.fd = descriptor;
      EXPECT_EQ(epoll_ctl(own_, EPOLL_CTL_ADD, descriptor, &event), 0);
    }
  }
  ~EventLoop() {
    close(own_);
    close(other_);
  }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // The loop that docs/threads.md tells: what attempt() says once that is not `again`.
  template <class Attempt>
  Status run(Attempt&& attempt) {
    for (;;) {
      if (Status status = group_.arm_events(); !status) return status;
      if (Status status = attempt(); status.code() != Code::again) return status;
      epoll_event event{};
      if (epoll_wait(own_, &event, 1, 20'000) != 1)
        return {Code::timeout, Scope::operation, "poll"};
      EXPECT_EQ(event.data.fd, events_);
      ++sleeps_;
      if (told(0)) continue;
      // The re-check: what has come all the same must have rung, or does so at once.
      Status status = attempt();
      if (status.code() == Code::again) continue;
      if (!told(5000)) ++lost_;
      return status;
    }
  }
  std::uint64_t sleeps() const noexcept { return sleeps_; }
  std::uint64_t lost() const noexcept { return lost_; }

 private:
  // By a peer, not by the timer, within a time.
  bool told(int limit_ms) const {
    for (int waited_ms = 0; waited_ms <= limit_ms; ++waited_ms) {
      std::array<epoll_event, 4> found{};
      const int count = epoll_wait(events_, found.data(), static_cast<int>(found.size()), 0);
      for (int i = 0; i < count; ++i) {
        if (found[i].data.u64 != static_cast<std::uint64_t>(transport::EventSet::Source::recheck))
          return true;
      }
      if (waited_ms < limit_ms) usleep(1000);
    }
    return false;
  }

  Group& group_;
  int own_;
  int other_;
  int events_ = -1;
  std::uint64_t sleeps_ = 0;
  std::uint64_t lost_ = 0;
};

// One rank of a scenario with one role, in an event loop; rows layout, lockstep.
inline void run_in_event_loop(const Scenario& scenario, const Expected& expected, Rank& rank) {
  Result<Channel> channel = rank.group.open(scenario.channel);
  ASSERT_TRUE(bool(channel)) << channel.status().text();
  EventLoop loop{rank.group};
  const ExpertSide side{&scenario, &channel->config(), &expected, rank.serves() ? rank.expert() : 0,
                        identities(channel->config().placement, rank.serves() ? rank.expert() : 0)};
  for (std::uint32_t s = 0; s < scenario.steps; ++s) {
    rank.at("step", s);
    if (rank.attends()) {
      AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), s)};
      Result<Ticket> ticket = step.dispatch(*channel);
      ASSERT_TRUE(bool(ticket)) << ticket.status().text();
      const Status status =
          loop.run([&] { return channel->try_combine(*ticket, step.out(), step.add()); });
      ASSERT_TRUE(bool(status)) << status.text();
      ASSERT_EQ(step.check(), "");
    } else {
      Batch batch;
      const Status status = loop.run([&] {
        Result<Batch> got = channel->try_receive();
        if (got) batch = std::move(*got);
        return got.status();
      });
      ASSERT_TRUE(bool(status)) << status.text();
      ASSERT_EQ(check_batch(side, *channel, batch), "");
      ASSERT_TRUE(bool(answer(side, batch, *channel)));
    }
  }
  EXPECT_GT(loop.sleeps(), 0u);
  EXPECT_EQ(loop.lost(), 0u) << "wake-ups";
  EXPECT_TRUE(bool(channel->drain()));
}

}  // namespace m2n::testing
