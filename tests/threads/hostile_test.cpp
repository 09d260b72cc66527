// What a peer may write into a reply, and what a caller may do to an arena or to a start, without
// harm.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "collectives/hooks.hpp"
#include "collectives/slot.hpp"
#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

using collectives::Hook;
using collectives::HookEvent;
using collectives::HookPoint;
using collectives::SlotHeader;

// Damages the header of every reply before it is read, while it lives.
class Damage {
 public:
  explicit Damage(std::function<void(SlotHeader&)> edit) : edit_{std::move(edit)} {
    collectives::test_hook.store(&hook_);
  }
  ~Damage() { collectives::test_hook.store(nullptr); }

 private:
  static void call(void* context, const HookEvent& event) {
    if (event.point != HookPoint::flag_seen_pre_read) return;
    static_cast<Damage*>(context)->edit_(*reinterpret_cast<SlotHeader*>(event.slot));
  }
  std::function<void(SlotHeader&)> edit_;
  Hook hook_{call, this};
};

struct Edit {
  const char* name;
  std::function<void(SlotHeader&)> edit;
};

TEST(HostileReply, EndsTheOperationUnavailable) {
  const Edit edits[] = {
      {"status", [](SlotHeader& h) { h.status = static_cast<collectives::ReplyStatus>(200); }},
      {"rows", [](SlotHeader& h) { h.rows = 3; }},
      {"offset wraps", [](SlotHeader& h) { h.body_offset = ~std::uint64_t{0} - 63; }},
      {"offset before", [](SlotHeader& h) { h.body_offset = std::uint64_t{0} - 512; }},
      {"offset misaligned", [](SlotHeader& h) { h.body_offset = 71; }},
      {"offset in the header", [](SlotHeader& h) { h.body_offset = 0; }},
      {"offset behind", [](SlotHeader& h) { h.body_offset = std::uint64_t{1} << 40; }},
      {"operation", [](SlotHeader& h) { h.operation += 7; }},
  };
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  std::vector<Channel> channels = open_everywhere(groups, lane_config(1), {});
  ASSERT_EQ(channels.size(), 1u);
  for (const Edit& edit : edits) {
    Result<Ticket> ticket = send(channels[0], 1);
    ASSERT_TRUE(ticket) << edit.name;
    ASSERT_TRUE(answer(channels[0]));
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
    {
      const Damage damage{edit.edit};
      const Status status = channels[0].combine(*ticket, {out.data()});
      EXPECT_EQ(status.code(), Code::unavailable) << edit.name;
      EXPECT_NE(status.text().find("answered invalid"), std::string::npos) << status.text();
    }
    Result<Ticket> next = send(channels[0], 2);
    ASSERT_TRUE(next);
    ASSERT_TRUE(answer(channels[0]));
    EXPECT_TRUE(take_back(channels[0], *next, 2)) << "after " << edit.name;
  }
}

// One block is acquired per operation, whatever becomes of it.
TEST(Arena, BlocksComeBack) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  ChannelConfig config = lane_config(1);
  config.exchange = ExchangeKind::shared;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 1u);
  const std::vector<std::int32_t> ids(lane_tokens, 0);
  for (std::uint32_t step = 0; step < 200; ++step) {
    const std::uint32_t tokens = step % 3 == 0 ? 0 : lane_tokens;
    Result<ArenaBlock> block = channels[0].arena_acquire(tokens);
    ASSERT_TRUE(block) << step << ": " << block.status().text();
    if (step % 3 == 1) {
      EXPECT_TRUE(channels[0].arena_release(*block));
      continue;
    }
    for (std::uint32_t t = 0; t < tokens; ++t) {
      auto* row = reinterpret_cast<float*>(block->base + t * block->row_stride_bytes);
      std::fill_n(row, lane_hidden, static_cast<float>(step));
    }
    Dispatch dispatch;
    dispatch.tokens = tokens;
    dispatch.x = {block->base, block->row_stride_bytes};
    dispatch.ids = ids.data();
    Result<Ticket> ticket = channels[0].dispatch(dispatch);
    ASSERT_TRUE(ticket) << ticket.status().text();
    ASSERT_TRUE(answer(channels[0]));
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden, 2.0f * static_cast<float>(step));
    EXPECT_TRUE(channels[0].combine(*ticket, {out.data()}));
    EXPECT_EQ(out.front(), 2.0f * static_cast<float>(step));
  }
}

// A rank that cannot take part says so and waits for nobody, not even for a rank that never comes.
TEST(Start, ARankThatRefusesDoesNotWait) {
  GroupConfig config = GroupConfig::split(1, 1, 1);
  config.expert_rank = 7;
  config.start_timeout = std::chrono::hours{1};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Group::create(config, make_inproc_store()).code(), Code::invalid);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds{5});
}

// Aggregation goes on for the others when one attention rank has closed.
TEST(Touched, OneClosedSourceDoesNotEndTheOthers) {
  std::vector<Group> groups = make_groups(2, 2);
  ASSERT_EQ(groups.size(), 2u);
  ChannelConfig config = lane_config(2);
  config.presence = Presence::touched;
  std::vector<Channel> channels = open_everywhere(groups, config, {0, 1, {}});
  ASSERT_EQ(channels.size(), 2u);
  EXPECT_TRUE(channels[0].close());
  EXPECT_EQ(channels[1].receive(Timeout{std::chrono::milliseconds{50}}).code(), Code::timeout);
  const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, 3.0f);
  const std::vector<std::int32_t> ids(lane_tokens, 1);  // rank 1's expert
  Dispatch dispatch;
  dispatch.tokens = lane_tokens;
  dispatch.x = {x.data()};
  dispatch.ids = ids.data();
  Result<Ticket> ticket = channels[1].dispatch(dispatch);
  ASSERT_TRUE(ticket);
  EXPECT_TRUE(answer(channels[1]));
  EXPECT_TRUE(take_back(channels[1], *ticket, 3));
}

TEST(Placement, RefusesSizesThatMakeNoSense) {
  EXPECT_FALSE(Placement::block(1, 0));
  EXPECT_FALSE(Placement::block(8, ~0u));
  EXPECT_FALSE(Placement::block(~0u, 1));
  EXPECT_EQ(Placement{}.experts(), 0u);
  EXPECT_EQ(channel_sizes(lane_config(8), 1, ~0u).code(), Code::invalid);
}

}  // namespace
}  // namespace m2n::testing
