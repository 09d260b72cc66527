// Waiting on several channels of which some give nothing any more allocates nothing per look.
#include <gtest/gtest.h>

#include <array>

#include "tests/threads/lanes.hpp"
#include "tests/transport/allocations.hpp"

namespace m2n::testing {
namespace {

constexpr Timeout soon{std::chrono::milliseconds{5}};
constexpr std::uint64_t few = 60;  // the texts of one call that times out

// Rank 0 closes; rank 1 waits, in lockstep for rank 0 first.
struct Lanes {
  std::vector<Group> groups = make_groups(2, 1, [](GroupConfig& c) { c.wait = Wait::yield; });
  std::vector<Channel> one = open_everywhere(groups, lane_config(2, "one"), {0, 0, double_batch});
  std::vector<Channel> two = open_everywhere(groups, lane_config(2, "two"), {0, 0, double_batch});
  bool good() const { return one.size() == 2 && two.size() == 2; }
};

TEST(Allocations, ReceiveAnyPassesOverAClosedChannel) {
  Lanes lanes;
  ASSERT_TRUE(lanes.good());
  EXPECT_TRUE(lanes.two[0].close());
  std::array<Channel, 2> channels{lanes.one[1], lanes.two[1]};
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = allocations();
    EXPECT_EQ(receive_any(channels, soon).code(), Code::timeout);
    EXPECT_LT(allocations() - before, few);
  }
  Result<Ticket> mine = send(lanes.one[1], 1);
  Result<Ticket> other = send(lanes.one[0], 2);
  ASSERT_TRUE(mine && other);
  Result<AnyBatch> any = receive_any(channels, soon);
  ASSERT_TRUE(any) << any.status().text();
  EXPECT_EQ(any->index, 0u);
  EXPECT_TRUE(double_batch(channels[0], any->batch));
  EXPECT_TRUE(answer(lanes.one[0]));
  EXPECT_TRUE(take_back(lanes.one[1], *mine, 1));
  EXPECT_TRUE(take_back(lanes.one[0], *other, 2));
  EXPECT_TRUE(lanes.one[0].close());
  any = receive_any(channels);
  EXPECT_EQ(any.code(), Code::closed);
  EXPECT_NE(any.status().text().find("world rank 0"), std::string::npos) << any.status().text();
  any = receive_any(channels);
  EXPECT_EQ(any.code(), Code::closed);
  EXPECT_EQ(any.status().peer(), 0);
}

TEST(Allocations, ServePassesOverAClosedChannel) {
  Lanes lanes;
  ASSERT_TRUE(lanes.good());
  EXPECT_TRUE(lanes.two[0].close());
  Result<Ticket> mine = send(lanes.one[1], 1);
  ASSERT_TRUE(mine);
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = allocations();
    EXPECT_EQ(lanes.one[1].serve(*mine, {out.data()}, {}, soon).code(), Code::timeout);
    EXPECT_LT(allocations() - before, few);
  }
}

}  // namespace
}  // namespace m2n::testing
