// Ranks as processes over shared memory: the usual cases again, and what only processes can do:
// I-14 (c, d, e), I-23 (stopped peer), I-51, I-52, fork after init.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include "tests/cases/random_config.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Scenario processes(std::uint32_t m, std::uint32_t n, std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = m;
  scenario.ranks.experts = n;
  scenario.ranks.transport = "shm";
  scenario.ranks.processes = true;
  scenario.channel = usual_channel(2 * n, 2, 64, 4);
  scenario.channel.placement = Placement::block(2 * n, n);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, (a + step) % 5, step);
  };
  return scenario;
}

std::size_t count_shm_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/dev/shm"})
    ++count;
  return count;
}

// Restricts this process, and what it starts, to some of its cores.
class CoreLimit {
 public:
  explicit CoreLimit(int cores) {
    CPU_ZERO(&before_);
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t few;
    CPU_ZERO(&few);
    for (int cpu = 0; cpu < CPU_SETSIZE && cores > 0; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      CPU_SET(cpu, &few);
      --cores;
    }
    sched_setaffinity(0, sizeof few, &few);
  }
  ~CoreLimit() { sched_setaffinity(0, sizeof before_, &before_); }
  CoreLimit(const CoreLimit&) = delete;
  CoreLimit& operator=(const CoreLimit&) = delete;

 private:
  cpu_set_t before_;
};

TEST(Processes, ManySteps) {
  for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
    for (const Presence presence : {Presence::every, Presence::touched}) {
      Scenario scenario = processes(3, 2, 300);
      scenario.channel.exchange = exchange;
      scenario.channel.presence = presence;
      scenario.form.arena = exchange == ExchangeKind::shared;
      scenario.in_flight = 2;
      run(scenario);
    }
  }
}

TEST(Processes, RandomConfigurations) {
  for (std::uint64_t seed = 5000; seed < 5025; ++seed) {
    Scenario scenario = random_scenario(seed);
    scenario.ranks.processes = true;
    scenario.ranks.transport = "shm";
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(scenario));
    run(scenario);
    if (HasFailure()) return;
  }
}

TEST(I51, SixteenRanksOnOneCore) {
  const CoreLimit one{1};
  const Clock::time_point start = Clock::now();
  run(processes(8, 8, 50));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds{10});
}

TEST(I51, ThirtyTwoRanksOnTwoCores) {
  const CoreLimit two{2};
  const Clock::time_point start = Clock::now();
  run(processes(16, 16, 20));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds{30});
}

TEST(I52, AnInheritedMaskStays) {
  const CoreLimit one{1};
  cpu_set_t before;
  CPU_ZERO(&before);
  sched_getaffinity(0, sizeof before, &before);
  Scenario scenario = processes(2, 2, 5);
  scenario.finally = [&](Rank&, Channel&) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    EXPECT_TRUE(CPU_EQUAL(&mine, &before));
  };
  run(scenario);
}

// (c) ranks end one after the other without close; (d) one ends so, the others close.
TEST(I14, RanksThatEndWithoutClosing) {
  const std::size_t files = count_shm_files();
  for (const bool only_the_last : {false, true}) {
    Scenario scenario = processes(2, 2, 3);
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      EXPECT_TRUE(rank.attends() ? run_attention(scenario, expected, rank, *channel)
                                 : run_expert(scenario, expected, rank, *channel));
      EXPECT_TRUE(bool(channel->drain()));
      if (!only_the_last || rank.config.world_rank == 3) {
        std::this_thread::sleep_for(milliseconds{50 * rank.config.world_rank});
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      }
      std::this_thread::sleep_for(milliseconds{250});  // the last one is gone
      const Clock::time_point start = Clock::now();
      EXPECT_TRUE(bool(channel->close()));
      rank.group = Group{};
      EXPECT_LT(Clock::now() - start, std::chrono::seconds{1});
    });
  }
  EXPECT_EQ(count_shm_files(), files);
}

// (e) exit() with everything in static objects.
std::optional<Group> static_group;
std::optional<Channel> static_channel;
std::optional<Ticket> static_ticket;

TEST(I14, ExitWithStaticObjectsAndAStepInFlight) {
  const std::size_t files = count_shm_files();
  Scenario scenario = processes(2, 2, 1);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    static_group = rank.group;
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    static_channel = *channel;
    if (rank.attends()) {
      AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), 0)};
      Result<Ticket> ticket = step.dispatch(*channel);
      if (ticket) static_ticket = std::move(*ticket);
    }
    rank.where->done = true;
    alarm(2);  // an end that takes longer ends by this signal
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(count_shm_files(), files);
}

// A child that was forked after init cleans up its copy of everything, and ends.
TEST(Fork, AChildsCleanUpHurtsNobody) {
  Scenario scenario = processes(2, 2, 20);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      static_cast<void>(channel->close());
      *channel = Channel{};
      static_cast<void>(rank.group.close());
      rank.group = Group{};
      rank.store.reset();
      std::_Exit(7);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    EXPECT_TRUE(rank.attends() ? run_attention(scenario, expected, rank, *channel)
                               : run_expert(scenario, expected, rank, *channel));
    EXPECT_TRUE(bool(channel->drain()));
  });
}

TEST(Fork, AChildDropsItsCopiesOfABatchAndATicket) {
  Scenario scenario = processes(1, 1, 1);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    std::optional<AttentionStep> step;
    Ticket ticket;
    Batch batch;
    if (rank.attends()) {
      step.emplace(scenario, channel->config(), expected.at(0, 0));
      Result<Ticket> dispatched = step->dispatch(*channel);
      ASSERT_TRUE(bool(dispatched)) << dispatched.status().text();
      ticket = std::move(*dispatched);
    } else {
      Result<Batch> received = channel->receive();
      ASSERT_TRUE(bool(received)) << received.status().text();
      batch = std::move(*received);
    }
    const pid_t child = fork();
    if (child == 0) {
      ticket = Ticket{};
      batch = Batch{};
      std::_Exit(7);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (rank.attends()) {
      const Status combined = channel->combine(ticket, step->out());
      EXPECT_TRUE(bool(combined)) << combined.text();
      EXPECT_EQ(step->check(), "");
    } else {
      const ExpertSide side{&scenario, &channel->config(), &expected, 0,
                            identities(scenario.channel.placement, 0)};
      EXPECT_TRUE(bool(answer(side, batch, *channel)));
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
}

// I-23: a stopped peer costs at most ten lines; here on the process's own stderr.
TEST(I23, AStoppedProcess) {
  Scenario scenario = processes(2, 2, 1);
  const Expected expected = expect(scenario);
  const ScratchDirectory directory;
  const SharedBytes shared{sizeof(std::atomic<std::uint64_t>) * 2};
  auto* stopped = new (shared.as<void>()) std::atomic<std::uint64_t>{0};
  auto* given_up = new (shared.as<std::atomic<std::uint64_t>>() + 1) std::atomic<std::uint64_t>{0};
  run_ranks(scenario.ranks, [&](Rank& rank) {
    const std::string file = directory.path() + "/" + std::to_string(rank.config.world_rank);
    if (std::freopen(file.c_str(), "w", stderr) == nullptr) ADD_FAILURE() << "no " << file;
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.config.world_rank == 3) {
      *stopped = static_cast<std::uint64_t>(getpid());
      raise(SIGSTOP);  // rank 0 lets it go on
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
    } else if (rank.serves()) {
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
    } else {
      AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), 0)};
      Result<Ticket> ticket = step.dispatch(*channel);
      ASSERT_TRUE(bool(ticket)) << ticket.status().text();
      while (stopped->load() == 0) std::this_thread::yield();
      for (int call = 0; call < 10; ++call) {
        const Status status = channel->combine(*ticket, step.out(), {}, Timeout{milliseconds{50}});
        EXPECT_EQ(status.code(), Code::timeout) << status.text();
        EXPECT_NE(status.text().find("rank 3"), std::string::npos) << status.text();
      }
      ++*given_up;
      while (given_up->load() < 2) std::this_thread::yield();
      if (rank.attention() == 0) kill(static_cast<pid_t>(stopped->load()), SIGCONT);
      EXPECT_TRUE(bool(channel->combine(*ticket, step.out())));
      EXPECT_EQ(step.check(), "");
    }
    EXPECT_TRUE(bool(channel->drain()));
    std::fflush(stderr);
  });
  for (int rank = 0; rank < 4; ++rank) {
    struct stat info {};
    ASSERT_EQ(stat((directory.path() + "/" + std::to_string(rank)).c_str(), &info), 0);
    EXPECT_LT(info.st_size, 2000) << "rank " << rank;
  }
}

// Section 2: a child that is ended by a signal still says so.
TEST(Signals, AKilledRankReportsItsSignal) {
  const ScratchDirectory directory;
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Result<std::shared_ptr<Store>> store = make_file_store(directory.path());
    GroupConfig config = GroupConfig::both(1, 0);
    config.transport = "shm";
    Result<Group> group = store ? Group::create(config, *store) : store.status();
    if (!group || !group->open(usual_channel(4, 2, 64, 4))) std::_Exit(1);
    raise(SIGTERM);
    std::_Exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

}  // namespace
}  // namespace m2n::testing
