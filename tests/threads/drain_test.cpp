// A drain is true only if both sides of every pair have finished with the same rounds, whatever was
// said in a drain before it that timed out.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "collectives/pair_drain.hpp"
#include "tests/support/payload.hpp"
#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

using collectives::PairDrain;

constexpr Timeout soon{std::chrono::milliseconds{20}};

// One operation of two ranks, all ends driven by this thread.
void step(std::vector<Channel>& channels) {
  std::vector<Ticket> tickets;
  for (Channel& channel : channels) tickets.push_back(*send(channel, 1));
  for (Channel& channel : channels) ASSERT_TRUE(answer(channel));
  for (std::size_t i = 0; i < channels.size(); ++i)
    EXPECT_TRUE(take_back(channels[i], tickets[i], 1));
}

void drain_all(std::vector<Channel>& channels) {
  std::vector<std::thread> threads;
  for (Channel& channel : channels)
    threads.emplace_back([&channel] { EXPECT_TRUE(channel.drain()); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Drain, WordsOfADrainThatTimedOutAreNoAnswerLater) {
  for (const Presence presence : {Presence::every, Presence::touched}) {
    std::vector<Group> groups = make_groups(2, 1);
    ChannelConfig config = lane_config(2);
    config.presence = presence;
    std::vector<Channel> channels = open_everywhere(groups, config, {});
    ASSERT_EQ(channels.size(), 2u);
    step(channels);
    EXPECT_EQ(channels[0].drain(soon).code(), Code::timeout);
    step(channels);
    const Status early = channels[1].drain(soon);
    EXPECT_EQ(early.code(), Code::timeout) << "rank 0 has not drained what it did since";
    EXPECT_EQ(early.peer(), 0) << early.text();
    drain_all(channels);
    step(channels);
    drain_all(channels);
  }
}

TEST(Drain, WithoutAnOperationInBetweenIsCollectiveAgain) {
  std::vector<Group> groups = make_groups(2, 1);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {});
  ASSERT_EQ(channels.size(), 2u);
  drain_all(channels);
  EXPECT_EQ(channels[0].drain(soon).code(), Code::timeout);
  EXPECT_TRUE(channels[1].drain(soon)) << "rank 0 has said it in the call that timed out";
  EXPECT_TRUE(channels[0].drain(soon));
  drain_all(channels);
}

// Two sides with messages under way, calls that give up at any time and operations in between.
struct Side {
  PairDrain drain;
  std::deque<PairDrain::Words> under_way;  // to this side
  bool inside = false;
  bool tried = false;  // since the last operation
  std::uint64_t done = 0;
};

// One look of a drain call. True when it is over.
bool look(Side& mine, Side& peer, std::uint64_t rounds) {
  while (!mine.under_way.empty()) {
    mine.drain.heard(mine.under_way.front());
    mine.under_way.pop_front();
  }
  mine.tried = true;
  if (!mine.drain.has_said(rounds)) {
    mine.drain.said(mine.drain.words(rounds));
    peer.under_way.push_back(mine.drain.words(rounds));
  }
  if (!mine.drain.agreed(rounds)) return false;
  mine.drain.finish(rounds);
  ++mine.done;
  return true;
}

TEST(PairDrain, RandomWalk) {
  Random random{4};
  Side sides[2];
  std::uint64_t rounds = 0;
  std::uint64_t since_operation = 0;  // drains of side 0 minus those of side 1
  std::uint64_t finished = 0;
  for (int i = 0; i < 200'000; ++i) {
    Side& mine = sides[random.below(2)];
    Side& peer = sides[&mine == &sides[0] ? 1 : 0];
    if (mine.inside) {
      mine.inside = !random.chance(6);  // else it gives up
      if (!mine.inside || !look(mine, peer, rounds)) continue;
      mine.inside = false;
      ++finished;
      ASSERT_TRUE(peer.tried) << "true only if the other side has come since the last operation";
      const std::uint64_t apart = sides[0].done - sides[1].done + since_operation;
      ASSERT_LE(apart + 1, 2u) << "at most one drain ahead";
    } else if (!peer.inside && random.chance(8)) {
      ++rounds;
      sides[0].tried = sides[1].tried = false;
      since_operation = sides[1].done - sides[0].done;
    } else {
      mine.inside = true;
    }
  }
  EXPECT_GT(finished, 10'000u);
  for (int i = 0; i < 4; ++i) {
    for (Side* side : {&sides[0], &sides[1]})
      look(*side, *(side == sides ? sides + 1 : sides), rounds);
  }
  EXPECT_GT(sides[0].done + sides[1].done, finished) << "and nobody waits for ever";
}

}  // namespace
}  // namespace m2n::testing
