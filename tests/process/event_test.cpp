// Ranks as processes that sleep in an event loop of their own.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/cases/scenario.hpp"
#include "tests/support/event_loop.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

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

TEST(EventProcesses, SleepInPollAlone) {
  for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
    Scenario scenario = processes(3, 2, 500);
    scenario.channel.exchange = exchange;
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) { run_in_event_loop(scenario, expected, rank); });
  }
}

// Ends without a word, as a killed one does.
[[noreturn]] void die() {
  std::_Exit(0);
}

void expect_named(const Status& status, std::int32_t peer, const EventLoop& loop) {
  EXPECT_EQ(status.code(), Code::peer_failed) << status.text();
  EXPECT_EQ(status.peer(), peer) << status.text();
  EXPECT_EQ(loop.lost(), 0u);
}

TEST(EventProcesses, AnExpertHearsOfADeath) {
  const Scenario scenario = processes(2, 2, 1);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.config.attention_rank == 1) die();
    if (rank.attends()) {
      AttentionStep step{scenario, channel->config(), expected.at(0, 0)};
      EXPECT_TRUE(bool(step.dispatch(*channel)));
      return;
    }
    EventLoop loop{rank.group};
    expect_named(loop.run([&] { return channel->try_receive().status(); }), 1, loop);
  });
}

TEST(EventProcesses, AnAttentionRankHearsOfADeath) {
  const Scenario scenario = processes(2, 2, 1);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.serves()) {
      Result<Batch> batch = channel->receive();
      if (rank.expert() == 1) die();
      const ExpertSide side{&scenario, &channel->config(), &expected, 0,
                            identities(channel->config().placement, 0)};
      ASSERT_TRUE(bool(batch)) << batch.status().text();
      EXPECT_TRUE(bool(answer(side, *batch, *channel)));
      return;
    }
    EventLoop loop{rank.group};
    AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), 0)};
    Result<Ticket> ticket = step.dispatch(*channel);
    ASSERT_TRUE(bool(ticket)) << ticket.status().text();
    expect_named(loop.run([&] { return channel->try_combine(*ticket, step.out(), step.add()); }), 3,
                 loop);
  });
}

// A forked child is refused, and its copy takes nothing from the parent.
TEST(EventProcesses, AForkedChildHasNone) {
  RankSet set;
  set.both = true;
  set.processes = true;
  for (const char* transport : {"inproc", "shm"}) {
    set.transport = transport;
    run_ranks(set, [](Rank& rank) {
      const Result<int> events = rank.group.event_descriptor();
      ASSERT_TRUE(bool(events));
      ASSERT_TRUE(bool(rank.group.arm_events()));
      const pid_t child = fork();
      if (child == 0) {
        if (rank.group.event_descriptor().code() != Code::invalid) std::_Exit(1);
        if (rank.group.arm_events().code() != Code::invalid) std::_Exit(2);
        rank.group = Group{};
        std::_Exit(fcntl(*events, F_GETFD) < 0 ? 3 : 7);  // still the copy, not closed
      }
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << WEXITSTATUS(status);
      pollfd entry{*events, POLLIN, 0};
      EXPECT_EQ(poll(&entry, 1, 20'000), 1) << "the re-check";
      EXPECT_TRUE(bool(rank.group.arm_events()));
    });
  }
}

}  // namespace
}  // namespace m2n::testing
