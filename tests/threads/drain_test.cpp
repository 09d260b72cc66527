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
constexpr Timeout patient{std::chrono::seconds{2}};

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
    threads.emplace_back([&channel] { EXPECT_TRUE(channel.drain(patient)); });
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

Result<Ticket> send_to(Channel& channel, std::int32_t expert) {
  const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, 1.0f);
  const std::vector<std::int32_t> ids(lane_tokens, expert);
  Dispatch dispatch;
  dispatch.tokens = lane_tokens;
  dispatch.x = {x.data()};
  dispatch.ids = ids.data();
  return channel.dispatch(dispatch);
}

// One end of a rank may have all words while the other still waits: nothing is over before both.
TEST(Drain, OneEndAloneIsNoDrain) {
  std::vector<Group> groups = make_groups(2, 1);
  ChannelConfig config = lane_config(2);
  config.presence = Presence::touched;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 2u);
  static_cast<void>(send_to(channels[1], 0));  // and the ticket is dropped
  std::thread other{[&] { EXPECT_TRUE(channels[1].drain(patient)); }};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(channels[0].drain(soon).code(), Code::timeout);
  EXPECT_TRUE(answer(channels[0]));
  EXPECT_TRUE(channels[0].drain(patient));
  other.join();
  EXPECT_EQ(channels[0].drain(soon).code(), Code::timeout);
  drain_all(channels);
}

// A call that timed out for one peer was enough for another, which is a drain ahead from then on.
TEST(Drain, APeerThatIsAheadIsToldAgain) {
  std::vector<Group> groups = make_groups(3, 1, [](GroupConfig& config) {
    config = GroupConfig::split(1, 2, config.world_rank);
    config.transport = "inproc";
  });
  ChannelConfig config = lane_config(2);
  config.presence = Presence::touched;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 3u);
  for (const std::int32_t expert : {0, 1, 1}) {
    Result<Ticket> ticket = send_to(channels[0], expert);
    ASSERT_TRUE(ticket);
    EXPECT_TRUE(answer(channels[1 + static_cast<std::size_t>(expert)]));
    EXPECT_TRUE(take_back(channels[0], *ticket, 1));
    if (expert == 1) continue;
    EXPECT_EQ(channels[0].drain(soon).code(), Code::timeout);
    EXPECT_TRUE(channels[1].drain(soon)) << "rank 0 has said it in the call that timed out";
  }
  drain_all(channels);
  drain_all(channels);
}

// Neither does asking again and again fill the ring of a peer that does not listen.
TEST(Drain, PollingForOnePeerIsNoBurdenToAnother) {
  std::vector<Group> groups = make_groups(3, 1);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(3), {});
  ASSERT_EQ(channels.size(), 3u);
  const Timeout now{std::chrono::nanoseconds{0}};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(channels[0].drain(now).code(), Code::timeout);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(channels[1].drain(now).code(), Code::timeout);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(channels[0].drain(now).code(), Code::timeout);
  EXPECT_TRUE(channels[2].drain(now));
  EXPECT_TRUE(channels[1].drain(now));
  EXPECT_TRUE(channels[0].drain(now));
  drain_all(channels);
}

// Ranks that all are peers of each other, with words under way, calls that give up at any time and
// operations of single pairs in between.
class Walk {
 public:
  static constexpr std::size_t count = 3;

  explicit Walk(std::uint64_t seed) : random_{seed} {}
  void act();
  // Everyone is out, then everyone drains once.
  void all_together();
  std::uint64_t finished() const { return finished_; }

 private:
  struct Side {  // what a rank has of a pair
    PairDrain drain;
    std::deque<PairDrain::Words> under_way;  // to this side
    std::uint64_t rounds = 0;
    std::uint64_t calls = 0;  // since the last operation of the pair
    std::uint64_t used = 0;   // of the peer's calls since then, at least
  };
  void begin(std::size_t rank);
  bool look(std::size_t rank);
  void hear(std::size_t rank);
  Side& side(std::size_t of, std::size_t to) { return sides_[of][to]; }

  Random random_;
  Side sides_[count][count];
  bool inside_[count] = {};
  std::uint64_t finished_ = 0;
};

void Walk::hear(std::size_t rank) {
  for (std::size_t peer = 0; peer < count; ++peer) {
    Side& mine = side(rank, peer);
    for (; !mine.under_way.empty(); mine.under_way.pop_front())
      mine.drain.heard(mine.under_way.front());
  }
}

void Walk::begin(std::size_t rank) {
  inside_[rank] = true;
  hear(rank);
  for (std::size_t peer = 0; peer < count; ++peer) {
    if (peer == rank) continue;
    side(rank, peer).drain.begin(side(rank, peer).rounds);
    ++side(rank, peer).calls;
  }
}

// True when the call is over.
bool Walk::look(std::size_t rank) {
  hear(rank);
  bool all = true;
  for (std::size_t peer = 0; peer < count; ++peer) {
    if (peer == rank) continue;
    PairDrain& drain = side(rank, peer).drain;
    std::deque<PairDrain::Words>& ring = side(peer, rank).under_way;
    if (drain.owes() && ring.size() < 16) {
      ring.push_back(drain.words());
      drain.said();
    }
    all &= drain.agreed();
  }
  if (!all) return false;
  for (std::size_t peer = 0; peer < count; ++peer) {
    if (peer == rank) continue;
    side(rank, peer).drain.finish();
    EXPECT_LE(++side(rank, peer).used, side(peer, rank).calls)
        << "as many calls of the peer since the last operation";
  }
  inside_[rank] = false;
  ++finished_;
  return true;
}

void Walk::act() {
  const std::size_t rank = random_.below(count);
  const std::size_t peer = (rank + 1 + random_.below(count - 1)) % count;
  if (inside_[rank]) {
    if (random_.chance(6)) inside_[rank] = false;
    if (inside_[rank]) look(rank);
  } else if (!inside_[peer] && random_.chance(8)) {
    for (Side* side : {&side(rank, peer), &side(peer, rank)}) {
      ++side->rounds;
      side->calls = side->used = 0;
    }
  } else {
    begin(rank);
  }
}

void Walk::all_together() {
  bool done[count];
  for (std::size_t rank = 0; rank < count; ++rank) done[rank] = inside_[rank] = false;
  for (std::size_t rank = 0; rank < count; ++rank) hear(rank);
  for (int i = 0; i < 4; ++i) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      if (i == 0) begin(rank);
      done[rank] = done[rank] || look(rank);
    }
  }
  for (std::size_t rank = 0; rank < count; ++rank) ASSERT_TRUE(done[rank]) << "rank " << rank;
}

TEST(PairDrain, RandomWalk) {
  Walk walk{4};
  Random random{5};
  for (int i = 0; i < 200'000 && !::testing::Test::HasFailure(); ++i) {
    walk.act();
    if (random.chance(40)) walk.all_together();
  }
  EXPECT_GT(walk.finished(), 10'000u);
}

// Without a call that times out each pairs with one of every peer, and the fast one waits.
TEST(PairDrain, WithoutTimeOutsNobodyIsMoreThanOneAhead) {
  PairDrain fast;
  PairDrain slow;
  auto speak = [](PairDrain& from, PairDrain& to) {
    if (!from.owes()) return;
    to.heard(from.words());
    from.said();
  };
  slow.begin(5);
  speak(slow, fast);
  for (int i = 0; i < 10; ++i) {  // `slow` waits for somebody else meanwhile
    fast.begin(5);
    speak(fast, slow);
    ASSERT_TRUE(fast.agreed());
    fast.finish();
    fast.begin(5);
    speak(fast, slow);
    ASSERT_FALSE(fast.agreed()) << "the peer is still in the call before";
    ASSERT_TRUE(slow.agreed());
    slow.finish();
    slow.begin(5);
    speak(slow, fast);
    ASSERT_TRUE(fast.agreed()) << "and now in this one";
    ASSERT_TRUE(slow.agreed()) << "the fast one may have gone";
    fast.finish();
    slow.finish();
    slow.begin(5);
    speak(slow, fast);
    ASSERT_FALSE(slow.agreed());
  }
}

}  // namespace
}  // namespace m2n::testing
