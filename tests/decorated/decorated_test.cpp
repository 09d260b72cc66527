// Whole channels over transports that hide mapped memory and let puts land late, in another order
// or at the second try: every result equals the reference. Ranks are threads.
#include <gtest/gtest.h>

#include "tests/decorated/hooked.hpp"

namespace m2n::testing {
namespace {

// Every transport, both kinds of presence and of combine, depth 1 to 4, oldest or newest first.
void run_many(const std::function<transport::OpenHook(std::uint64_t)>& hook, std::uint32_t steps) {
  std::uint64_t seed = 0;
  for (const char* transport : {"inproc", "shm"}) {
    for (std::uint32_t depth = 1; depth <= 4; ++depth) {
      for (const Presence presence : {Presence::every, Presence::touched}) {
        ++seed;
        SCOPED_TRACE(std::string{transport} + ", depth " + std::to_string(depth) + ", seed " +
                     std::to_string(seed));
        const Hooked hooked{hook(seed)};
        Scenario scenario = small_scenario(2, 3, steps);
        scenario.ranks.transport = transport;
        scenario.channel.depth = depth;
        scenario.channel.presence = presence;
        scenario.channel.combine = seed % 3 == 0 ? Combine::per_expert : Combine::reduced;
        scenario.channel.layout = seed % 4 == 1   ? Layout::grouped
                                  : seed % 4 == 2 ? Layout::packed
                                                  : Layout::rows;
        scenario.in_flight = depth;
        scenario.newest_first = seed % 2 == 0;
        run(scenario);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Decorated, ReorderedPutsChangeNoResult) {
  run_many(reordered, 17);
}

TEST(Decorated, RefusedAndDelayedPutsChangeNoResult) {
  run_many(
      [](std::uint64_t seed) {
        auto faults = std::make_shared<Faults>();
        faults->again_every = 2 + seed % 3;
        faults->delay_every = 3 + seed % 5;
        faults->delay_calls = 1 + seed % 7;
        faults->swallow_notify_every = 4;
        return faulty(faults);
      },
      9);
}

TEST(Decorated, RanksWithBothRolesUnderReordering) {
  for (std::uint64_t seed = 0; seed < 6 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Hooked hooked{reordered(seed)};
    Scenario scenario = small_scenario(3, 3, 10);
    scenario.ranks.both = true;
    scenario.use_serve = seed % 2 == 0;
    scenario.ranks.transport = seed % 3 == 0 ? "shm" : "inproc";
    run(scenario);
  }
}

// The arena cannot be shared without mapped memory: who asks for it hears so on every rank, who
// leaves the choice to the library gets pushed rows.
TEST(Decorated, TheSharedExchangeNeedsMappedMemory) {
  for (const char* transport : {"inproc", "shm"}) {
    SCOPED_TRACE(transport);
    const Hooked hooked{reordered(11)};
    Scenario scenario = small_scenario(2, 2, 9);
    scenario.ranks.transport = transport;
    scenario.channel.exchange = ExchangeKind::shared;
    run_ranks(scenario.ranks, [&](Rank& rank) {
      const Status status = rank.group.open(scenario.channel).status();
      EXPECT_EQ(status.code(), Code::invalid) << status.text();
      for (const char* part : {"exchange", "shared over", "push", "ChannelConfig::exchange"}) {
        EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
      }
    });
    scenario.channel.exchange = ExchangeKind::automatic;
    scenario.finally = [](Rank& rank, Channel& channel) {
      if (rank.attends()) {
        const Status none = channel.arena_acquire(1).status();
        EXPECT_NE(none.text().find("automatic over memory that is not shared"), std::string::npos)
            << none.text();
      }
    };
    run(scenario);
  }
}

// Calls that may not block move things on all the same.
TEST(Decorated, PollingWithTimeoutZeroGetsThere) {
  const Hooked hooked{reordered(12)};
  Scenario scenario = small_scenario(2, 2, 9);
  const Expected expected = expect(scenario);
  const Timeout now{std::chrono::nanoseconds{0}};
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    for (std::uint32_t s = 0; s < scenario.steps; ++s) {
      rank.at("step", s);
      Status status = Code::timeout;
      if (rank.attends()) {
        AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), s)};
        Result<Ticket> ticket = step.dispatch(*channel);
        ASSERT_TRUE(bool(ticket)) << ticket.status().text();
        while (status.code() == Code::timeout)
          status = channel->combine(*ticket, step.out(), step.add(), now);
        EXPECT_TRUE(bool(status)) << status.text();
        EXPECT_EQ(step.check(), "");
        continue;
      }
      Result<Batch> batch{Code::timeout};
      while (batch.code() == Code::timeout) batch = channel->receive(now);
      ASSERT_TRUE(bool(batch)) << batch.status().text();
      const ExpertSide side{&scenario, &channel->config(), &expected, rank.expert(),
                            identities(scenario.channel.placement, rank.expert())};
      EXPECT_TRUE(bool(answer(side, *batch, *channel)));
    }
    rank.at("drain");
    Status drained = Code::timeout;
    while (drained.code() == Code::timeout) drained = channel->drain(now);
    EXPECT_TRUE(bool(drained)) << drained.text();
  });
}

TEST(Decorated, OnePutPerRoundAndDirection) {
  for (const char* transport : {"inproc", "shm"}) {
    SCOPED_TRACE(transport);
    const auto counts = std::make_shared<Counts>();
    const Hooked hooked{counted(counts)};
    Scenario scenario = small_scenario(2, 3, 20);
    scenario.ranks.transport = transport;
    scenario.in_flight = 2;
    std::atomic<std::uint64_t> wire_bytes{0};
    scenario.finally = [&](Rank& rank, Channel& channel) {
      wire_bytes += rank.attends() ? channel.attention_statistics().wire_bytes
                                   : channel.expert_statistics().reply_bytes;
    };
    run(scenario);
    // Per end of a pair: `drained` and `close`, and that these two were taken.
    constexpr std::uint64_t pairs = 2 * 3;
    EXPECT_GE(counts->puts.load(), pairs * 2 * 20);
    EXPECT_LE(counts->puts.load(), pairs * 2 * (20 + 4));
    EXPECT_GT(wire_bytes.load(), 0u);
    EXPECT_LE(counts->bytes.load(), wire_bytes + counts->puts * 64)
        << "more travelled than was told";
  }
}

// Puts of a channel that has gone may complete when the next one has the same links.
TEST(Decorated, ChannelsComeAndGo) {
  for (const char* transport : {"inproc", "shm"}) {
    SCOPED_TRACE(transport);
    const Hooked hooked{reordered(3)};
    Scenario scenario = small_scenario(2, 2, 5);
    scenario.ranks.transport = transport;
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      for (std::uint32_t i = 0; i < 6 && !::testing::Test::HasFailure(); ++i) {
        Scenario next = scenario;
        next.channel.name = "channel " + std::to_string(i);
        run_rank(next, expected, rank);
      }
    });
  }
}

}  // namespace
}  // namespace m2n::testing
