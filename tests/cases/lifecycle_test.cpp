// Beginning and end: I-14 (within one process), I-49, I-51 (idle), I-52, signals, descriptors.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr const char* transports[] = {"inproc", "shm"};

Scenario two_by_two(std::uint32_t steps, const char* transport) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = 2;
  scenario.ranks.transport = transport;
  scenario.channel = usual_channel(4, 2, 32, 4);
  scenario.channel.placement = Placement::block(4, 2);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, 4, step);
  };
  return scenario;
}

std::size_t count_shm_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/dev/shm"})
    ++count;
  return count;
}

std::size_t count_threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator{"/proc/self/task"}) {
    ++count;
  }
  return count;
}

TEST(I14, CloseWithoutUseAndTwice) {
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(1, transport);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      const Clock::time_point start = Clock::now();
      EXPECT_TRUE(bool(channel->close()));
      EXPECT_TRUE(bool(channel->close()));
      EXPECT_TRUE(bool(rank.group.close()));
      EXPECT_TRUE(bool(rank.group.close()));
      rank.group = Group{};
      EXPECT_LT(Clock::now() - start, std::chrono::seconds{1});
      EXPECT_EQ(channel->dispatch({}).code(), rank.attends() ? Code::closed : Code::invalid);
    });
  }
}

// Whatever outlives whatever, and in whichever order the ranks go.
TEST(I14, HandlesOutliveTheGroup) {
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(1, transport);
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      std::this_thread::sleep_for(milliseconds{10 * rank.config.world_rank});
      if (rank.attends()) {
        AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), 0)};
        Result<Ticket> ticket = step.dispatch(*channel);
        if (!ticket) {  // an expert rank may be gone already
          EXPECT_EQ(ticket.code(), Code::closed) << ticket.status().text();
          return;
        }
        rank.group = Group{};
        const Clock::time_point start = Clock::now();
        const Status status = channel->combine(*ticket, step.out());
        EXPECT_EQ(status.code(), Code::cancelled) << status.text();
        EXPECT_LT(Clock::now() - start, std::chrono::seconds{1});
        *channel = Channel{};
      } else {
        rank.group = Group{};
        EXPECT_EQ(channel->try_receive().code(), Code::closed);
      }
    });
  }
}

// A peer that closes is told by name, at once, whatever the deadline.
TEST(I14, WaitsForAClosedPeerEnd) {
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(1, transport);
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.config.world_rank == 1) {
        EXPECT_TRUE(bool(channel->close()));
        return;
      }
      const Clock::time_point start = Clock::now();
      if (rank.serves()) {
        const Status status = channel->receive(Timeout::never()).status();
        EXPECT_EQ(status.code(), Code::closed) << status.text();
        EXPECT_EQ(status.peer(), 1);
        EXPECT_NE(status.text().find("rank 1"), std::string::npos) << status.text();
        EXPECT_TRUE(bool(channel->close()));
      } else {
        AttentionStep step{scenario, channel->config(), expected.at(0, 0)};
        Result<Ticket> ticket = step.dispatch(*channel);
        if (!ticket) {
          EXPECT_EQ(ticket.code(), Code::closed);
        } else {
          EXPECT_EQ(channel->combine(*ticket, step.out(), {}, Timeout::never()).code(),
                    Code::closed);
        }
      }
      EXPECT_LT(Clock::now() - start, std::chrono::seconds{2});
    });
  }
}

TEST(I14, AbortFromAnotherThread) {
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(1, transport);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.attends()) return;
      std::atomic<bool> inside{false};
      std::thread other{[&] {
        while (!inside.load()) std::this_thread::yield();
        channel->abort();
      }};
      inside = true;
      const Clock::time_point start = Clock::now();
      const Code code = channel->receive(Timeout::never()).code();
      // The attention ranks go away at the same time.
      EXPECT_TRUE(code == Code::aborted || code == Code::closed) << name(code);
      other.join();
      EXPECT_EQ(channel->receive(Timeout::never()).code(), Code::aborted);
      EXPECT_LT(Clock::now() - start, std::chrono::seconds{1});
    });
  }
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int lives = 40;  // windows are costly under sanitizers
#else
constexpr int lives = 250;
#endif

// Many lives: start, one step, drain, close. Nothing is lost at the end, nothing stays behind.
TEST(I49, NothingIsLostInManyShortLives) {
  for (const char* transport : transports) {
    Scenario scenario = two_by_two(1, transport);
    scenario.ranks.bare = true;
    const Expected expected = expect(scenario);
    const std::size_t descriptors = count_descriptors();
    const std::size_t files = count_shm_files();
    run_ranks(scenario.ranks, [&](Rank& rank) {
      for (int life = 0; life < lives && !::testing::Test::HasFailure(); ++life) {
        rank.at("life", static_cast<std::uint64_t>(life));
        Result<Group> group = Group::create(rank.config, rank.store);
        ASSERT_TRUE(bool(group)) << group.status().text();
        rank.group = *group;
        run_rank(scenario, expected, rank);
        rank.group = Group{};
      }
    });
    EXPECT_EQ(count_descriptors(), descriptors) << transport;
    EXPECT_EQ(count_shm_files(), files) << transport;
  }
}

TEST(I49, NobodyLeavesADrainBeforeTheLastHasCome) {
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(3, transport);
    const Expected expected = expect(scenario);
    std::atomic<bool> late_one_has_come{false};
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      rank.attends() ? run_attention(scenario, expected, rank, *channel)
                     : run_expert(scenario, expected, rank, *channel);
      if (rank.config.world_rank == 2) {
        std::this_thread::sleep_for(milliseconds{100});
        late_one_has_come = true;
      }
      EXPECT_TRUE(bool(channel->drain()));
      // Pairs are attention-expert: those that have a pair with the late one must have waited.
      EXPECT_TRUE(rank.serves() || late_one_has_come.load());
    });
  }
}

TEST(I51, AnIdleReceiverSleeps) {
  for (const char* transport : transports) {
    Scenario scenario = two_by_two(1, transport);
    scenario.ranks.adjust = [](GroupConfig& config) { config.wait = Wait::sleep; };
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.serves()) {
        rusage before{}, after{};
        getrusage(RUSAGE_THREAD, &before);
        EXPECT_EQ(channel->receive(Timeout{milliseconds{1000}}).code(), Code::timeout);
        getrusage(RUSAGE_THREAD, &after);
        timeval user{}, system{}, sum{};
        timersub(&after.ru_utime, &before.ru_utime, &user);
        timersub(&after.ru_stime, &before.ru_stime, &system);
        timeradd(&user, &system, &sum);
        EXPECT_LT(sum.tv_sec * 1'000'000 + sum.tv_usec, 100'000) << "more than 10 % of a core";
      }
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

TEST(I52, ThreadsAndAffinityStayAsTheyWere) {
  cpu_set_t before;
  CPU_ZERO(&before);
  sched_getaffinity(0, sizeof before, &before);
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(3, transport);
    const Expected expected = expect(scenario);
    std::thread{[] {}}.join();  // sanitizers start one of their own with the first
    const std::size_t threads = count_threads();
    std::atomic<std::size_t> most_threads{0};
    run_ranks(scenario.ranks, [&](Rank& rank) {
      cpu_set_t mine;
      CPU_ZERO(&mine);
      run_rank(scenario, expected, rank);
      sched_getaffinity(0, sizeof mine, &mine);
      EXPECT_TRUE(CPU_EQUAL(&mine, &before));
      most_threads = std::max(most_threads.load(), count_threads());
    });
    EXPECT_LE(most_threads.load(), threads + 4);  // four ranks: no hidden ones
  }
}

// --- signals
// ----------------------------------------------------------------------------------------
std::atomic<std::uint64_t> alarms{0};

TEST(Signals, AnAlarmEveryMillisecond) {
  struct sigaction action {};
  struct sigaction old {};
  action.sa_handler = [](int) { alarms.fetch_add(1, std::memory_order_relaxed); };
  ASSERT_EQ(sigaction(SIGALRM, &action, &old), 0);  // without SA_RESTART: calls end with EINTR
  const itimerval timer{{0, 1000}, {0, 1000}};
  const itimerval off{};
  for (const char* transport : transports) {
    Scenario scenario = two_by_two(1000, transport);
    scenario.ranks.adjust = [](GroupConfig& config) { config.wait = Wait::sleep; };
    setitimer(ITIMER_REAL, &timer, nullptr);
    run(scenario);
    setitimer(ITIMER_REAL, &off, nullptr);
  }
  sigaction(SIGALRM, &old, nullptr);
  EXPECT_GT(alarms.load(), 5u);
}

TEST(Signals, DispositionsStayAsTheyWere) {
  const auto all = [] {
    std::vector<std::pair<std::uintptr_t, int>> actions;
    for (int signal = 1; signal < 65; ++signal) {
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      actions.emplace_back(reinterpret_cast<std::uintptr_t>(action.sa_handler), action.sa_flags);
    }
    return actions;
  };
  const auto before = all();
  for (const char* transport : transports) {
    const Scenario scenario = two_by_two(1, transport);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel));
      EXPECT_EQ(all(), before);
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

}  // namespace
}  // namespace m2n::testing
