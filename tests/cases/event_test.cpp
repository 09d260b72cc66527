// Ranks that sleep in an event loop of their own: as threads, and what only the caller does.
#include <poll.h>

#include <thread>

#include "tests/cases/scenario.hpp"
#include "tests/support/event_loop.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

Scenario small(std::uint32_t m, std::uint32_t n, std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = m;
  scenario.ranks.experts = n;
  scenario.channel = usual_channel(2 * n, 2, 64, 4);
  scenario.channel.placement = Placement::block(2 * n, n);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, (a + step) % 5, step);
  };
  return scenario;
}

bool readable(int descriptor, int limit_ms) {
  pollfd entry{descriptor, POLLIN, 0};
  return poll(&entry, 1, limit_ms) == 1;
}

TEST(EventLoop, ThreadsSleepInPollAlone) {
  for (const char* transport : {"inproc", "shm"}) {
    for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
      Scenario scenario = small(2, 2, 300);
      scenario.ranks.transport = transport;
      scenario.channel.exchange = exchange;
      const Expected expected = expect(scenario);
      run_ranks(scenario.ranks, [&](Rank& rank) { run_in_event_loop(scenario, expected, rank); });
    }
  }
}

// A peer's close is a message: told by the descriptor, and by the next try_ form.
TEST(EventLoop, APeersCloseIsAnEvent) {
  const Scenario scenario = small(1, 1, 1);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) return;  // leaves: the channel is closed
    EventLoop loop{rank.group};
    const Status status = loop.run([&] { return channel->try_receive().status(); });
    EXPECT_EQ(status.code(), Code::closed) << status.text();
    EXPECT_EQ(loop.lost(), 0u);
  });
}

TEST(EventLoop, AnAbortFromAnotherThreadIsAnEvent) {
  const Scenario scenario = small(1, 1, 1);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) return;
    EventLoop loop{rank.group};
    std::thread other{[&] { channel->abort(); }};
    const Status status = loop.run([&] { return channel->try_receive().status(); });
    other.join();
    EXPECT_TRUE(status.code() == Code::aborted || status.code() == Code::closed) << status.text();
    EXPECT_EQ(loop.lost(), 0u);
  });
}

// Not armed: an arrival leaves the descriptor as it is. Armed: once, and the next arming ends it.
TEST(EventLoop, OnlyAnArmedDescriptorIsTold) {
  const Scenario scenario = small(1, 1, 2);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) {
      EXPECT_TRUE(run_attention(scenario, expected, rank, *channel));
    } else {
      const Result<int> events = rank.group.event_descriptor();
      ASSERT_TRUE(bool(events)) << events.status().text();
      EXPECT_EQ(*rank.group.event_descriptor(), *events);
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
      EXPECT_FALSE(readable(*events, 0));
      EXPECT_TRUE(bool(rank.group.arm_events()));
      EXPECT_TRUE(readable(*events, 20'000)) << "the re-check";
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
}

TEST(EventLoop, MisuseIsRefused) {
  EXPECT_EQ(Group{}.event_descriptor().code(), Code::invalid);
  EXPECT_EQ(Group{}.arm_events().code(), Code::invalid);
  RankSet set;
  set.both = true;
  set.adjust = [](GroupConfig& config) { config.workers = 2; };
  run_ranks(set, [](Rank& rank) {
    Group& group = rank.group;
    const Status early = group.arm_events();
    EXPECT_EQ(early.code(), Code::invalid);
    EXPECT_NE(early.text().find("Group::event_descriptor"), std::string::npos) << early.text();
    const Result<int> none = group.event_descriptor(2);
    EXPECT_EQ(none.code(), Code::invalid);
    EXPECT_NE(none.status().text().find("0..1"), std::string::npos) << none.status().text();
    EXPECT_EQ(group.arm_events(2).code(), Code::invalid);
    const Result<int> first = group.event_descriptor(0);
    const Result<int> second = group.event_descriptor(1);
    ASSERT_TRUE(first && second);
    EXPECT_NE(*first, *second) << "one per worker";
    EXPECT_TRUE(bool(group.arm_events(1)));
    EXPECT_EQ(group.arm_events(7).code(), Code::invalid);
  });
}

TEST(EventLoop, NoDescriptorStays) {
  RankSet set;
  set.both = true;
  set.bare = true;
  for (const char* transport : {"inproc", "shm"}) {
    set.transport = transport;
    run_ranks(set, [](Rank& rank) {
      std::size_t before = 0;
      for (int i = 0; i < 200; ++i) {
        Result<Group> group = Group::create(rank.config, rank.store);
        ASSERT_TRUE(bool(group)) << group.status().text();
        ASSERT_TRUE(bool(group->event_descriptor()));
        ASSERT_TRUE(bool(group->arm_events()));
        *group = Group{};
        if (i == 0) before = count_descriptors();
      }
      EXPECT_EQ(count_descriptors(), before);
    });
  }
}

}  // namespace
}  // namespace m2n::testing
