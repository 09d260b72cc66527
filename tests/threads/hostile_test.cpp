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

// The same expert twice, once without saying so: it would not fit what counts are made for.
TEST(HostileRound, AnExpertTwiceInARowIsInvalidOnce) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  ChannelConfig config = lane_config(2);
  config.top_k = 2;
  config.layout = Layout::grouped;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 1u);
  const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, 1);
  std::vector<std::int32_t> ids;
  for (std::uint32_t t = 0; t < lane_tokens; ++t) ids.insert(ids.end(), {0, 1});
  Dispatch call;
  call.tokens = lane_tokens;
  call.x = {x.data()};
  call.ids = ids.data();
  const auto edit = [](void*, const HookEvent& event) {
    if (event.point != HookPoint::header_written) return;
    auto& header = *reinterpret_cast<SlotHeader*>(event.slot);
    auto* entries = reinterpret_cast<Entry*>(event.slot + header.body_offset +
                                             (header.rows + 1) * sizeof(RowInfo));
    entries[1].expert_bits = entries[0].expert_bits;
  };
  const Hook hook{edit, nullptr};
  collectives::test_hook.store(&hook);
  Result<Ticket> ticket = channels[0].dispatch(call);
  collectives::test_hook.store(nullptr);
  ASSERT_TRUE(ticket);
  const Status refused = channels[0].receive(Timeout{std::chrono::milliseconds{50}}).status();
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.text().find("twice"), std::string::npos) << refused.text();
  EXPECT_EQ(channels[0].try_receive().code(), Code::again);
}

// The end of a channel is not the end of another that the same thread serves.
TEST(HostileCaller, ServeGoesOnWithoutAChannelThatWasAborted) {
  std::vector<Group> groups = make_groups(1, 1);
  ASSERT_EQ(groups.size(), 1u);
  const OpenOptions options{0, 0, double_batch};
  std::vector<Channel> a = open_everywhere(groups, lane_config(1, "a"), options);
  std::vector<Channel> b = open_everywhere(groups, lane_config(1, "b"), options);
  ASSERT_EQ(a.size() + b.size(), 2u);
  Result<Ticket> pending = send(b[0], 1);
  ASSERT_TRUE(pending);
  b[0].abort();
  Result<Ticket> ticket = send(a[0], 3);
  ASSERT_TRUE(ticket);
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  const Status served = a[0].serve(*ticket, {out.data()});
  EXPECT_TRUE(served) << served.text();
  EXPECT_EQ(out.front(), 6.0f);
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
      EXPECT_EQ(channels[0].arena_release(*block).code(), Code::invalid) << "it is given back";
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
    EXPECT_EQ(channels[0].arena_release(*block).code(), Code::invalid) << "it is in flight";
    ASSERT_TRUE(answer(channels[0]));
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden, 2.0f * static_cast<float>(step));
    EXPECT_TRUE(channels[0].combine(*ticket, {out.data()}));
    EXPECT_EQ(out.front(), 2.0f * static_cast<float>(step));
  }
}

// A rank that cannot take part says so and waits for nobody, not even for a rank that never comes.
TEST(Start, ARoleBelowNoneIsRefused) {
  GroupConfig config = GroupConfig::split(1, 1, 1);
  config.attention_rank = -5;
  const Status refused = Group::create(config, make_inproc_store()).status();
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.text().find("attention_rank = -5"), std::string::npos) << refused.text();
}

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
