// I-56 and I-09: every misuse is told with function, argument, actual, allowed, rank and setting,
// and does no harm. One rank with both roles, one thread.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "m2n/m2n.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

constexpr std::uint32_t experts = 8, top_k = 2, hidden = 64, max_tokens = 4;

// The six parts, as they must stand in the text.
struct Parts {
  const char* function;
  const char* argument;
  const char* actual;
  const char* allowed;
  const char* setting;
  Code code = Code::invalid;
};

void expect_parts(const Status& status, const Parts& parts, const char* rank = "rank 0") {
  EXPECT_EQ(status.code(), parts.code) << status.text();
  for (const char* part : {parts.function, parts.argument, parts.actual, parts.allowed,
                           parts.setting, rank, "allowed"}) {
    EXPECT_NE(status.text().find(part), std::string::npos)
        << "no \"" << part << "\" in: " << status.text();
  }
}

class Misuse : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = make_inproc_store();
    Result<Group> group = Group::create(GroupConfig::both(1, 0), store_);
    ASSERT_TRUE(bool(group)) << group.status().text();
    group_ = *group;
    channel_ = open("main", Layout::rows);
    x_.resize(max_tokens * hidden);
    out_.resize(max_tokens * hidden);
    good_.tokens = max_tokens;
    good_.x = {x_.data()};
    good_.ids = ExpertIds{ids_.data()};
    good_.weights = RoutingWeights{weights_.data()};
  }

  // Whatever was refused, the channel must still work, and no operation may have been used up.
  void TearDown() override {
    if (!channel_ || HasFatalFailure()) return;
    Result<Ticket> ticket = channel_.dispatch(good_);
    ASSERT_TRUE(bool(ticket)) << ticket.status().text();
    EXPECT_EQ(ticket->operation(), used_);
    serve_one(channel_);
    EXPECT_TRUE(bool(channel_.combine(*ticket, {out_.data()})));
  }

  Channel open(const char* name, Layout layout) {
    ChannelConfig config = usual_channel(experts, top_k, hidden, max_tokens);
    config.name = name;
    config.layout = layout;
    Result<Channel> channel = group_.open(config);
    EXPECT_TRUE(bool(channel)) << channel.status().text();
    return channel ? *channel : Channel{};
  }

  Status dispatch(const Dispatch& arguments) { return channel_.dispatch(arguments).status(); }

  Ticket good_ticket() {
    Result<Ticket> ticket = channel_.dispatch(good_);
    EXPECT_TRUE(bool(ticket)) << ticket.status().text();
    ++used_;
    return ticket ? std::move(*ticket) : Ticket{};
  }

  void serve_one(Channel& channel) {
    Result<Batch> batch = channel.receive();
    ASSERT_TRUE(bool(batch)) << batch.status().text();
    reply_well(channel, *batch);
  }

  void reply_well(Channel& channel, Batch& batch) {
    y_.resize(batch.total_pairs() * hidden);
    const Outputs one{y_.data()};
    const Status status = channel.reply(batch, std::span{&one, 1});
    EXPECT_TRUE(bool(status)) << status.text();
  }

  std::shared_ptr<Store> store_;
  Group group_;
  Channel channel_;
  std::uint64_t used_ = 0;
  std::vector<std::uint16_t> x_, out_, y_;
  std::array<std::int32_t, max_tokens * top_k> ids_{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<std::int64_t, max_tokens * top_k> wide_ids_{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<float, max_tokens * top_k> weights_{1, 1, 1, 1, 1, 1, 1, 1};
  Dispatch good_;
};

TEST_F(Misuse, DispatchShapes) {
  Dispatch bad = good_;
  bad.tokens = 300;  // 1
  expect_parts(dispatch(bad), {"dispatch", "tokens", "300", "0..4", "ChannelConfig::max_tokens"});
  bad = good_;
  bad.x.base = nullptr;  // 2
  expect_parts(dispatch(bad), {"dispatch", "x", "nullptr", "memory", "ChannelConfig::hidden"});
  bad = good_;
  bad.x.column_stride = 2;  // 3
  expect_parts(dispatch(bad), {"dispatch", "x.column_stride", "2", "1", "ChannelConfig::hidden"});
  bad = good_;
  bad.x.row_stride_bytes = 127;  // 4
  expect_parts(dispatch(bad), {"dispatch", "x.row_stride", "127", "128", "ChannelConfig::hidden"});
  bad = good_;
  const ConstRows one{x_.data()};
  bad.extra = {&one, 1};  // 5
  expect_parts(dispatch(bad), {"dispatch", "extra", "1", "0", "ChannelConfig::extra_row_bytes"});
}

TEST_F(Misuse, DispatchRouting) {
  Dispatch bad = good_;
  bad.ids.base = nullptr;  // 6
  expect_parts(dispatch(bad), {"dispatch", "ids", "nullptr", "memory", "Dispatch::ids"});
  bad = good_;
  bad.ids.base = reinterpret_cast<const std::byte*>(ids_.data()) + 1;  // 7
  expect_parts(dispatch(bad), {"dispatch", "ids", "misaligned", "4 bytes", "Dispatch::ids"});
  bad = good_;
  bad.ids.row_stride = 1;  // 8
  expect_parts(dispatch(bad), {"dispatch", "ids.row_stride", "1", "2", "ChannelConfig::top_k"});
  bad = good_;
  bad.weights.type = DataType::f16;  // 9
  expect_parts(dispatch(bad), {"dispatch", "weights.type", "f16", "f32 or bf16", "weights"});
  bad = good_;
  bad.weights.base = reinterpret_cast<const std::byte*>(weights_.data()) + 2;  // 10
  expect_parts(dispatch(bad), {"dispatch", "weights", "misaligned", "4 bytes", "weights"});
  bad = good_;
  bad.weights.row_stride = 1;  // 11
  expect_parts(dispatch(bad), {"dispatch", "weights.row_stride", "1", "2", "ChannelConfig::top_k"});
}

TEST_F(Misuse, I09IdsOutOfRange) {
  const auto refused = [&](const Dispatch& arguments, const char* actual) {
    expect_parts(dispatch(arguments),
                 {"dispatch", "token 2", actual, "7", "ChannelConfig::experts"});
    EXPECT_NE(dispatch(arguments).text().find("k 1"), std::string::npos);
  };
  for (const std::int32_t id : {8, -2, std::numeric_limits<std::int32_t>::max(),
                                std::numeric_limits<std::int32_t>::min()}) {
    ids_[5] = id;  // 12, 13
    refused(good_, std::to_string(id).c_str());
  }
  ids_[5] = 5;
  Dispatch wide = good_;
  wide.ids = ExpertIds{wide_ids_.data()};
  for (const std::int64_t id : {std::int64_t{1} << 40, std::int64_t{1} << 32, std::int64_t{-2},
                                std::numeric_limits<std::int64_t>::min()}) {
    wide_ids_[5] = id;  // 14
    refused(wide, std::to_string(id).c_str());
  }
}

TEST_F(Misuse, NoCredit) {
  Ticket first = good_ticket();
  Ticket second = good_ticket();
  expect_parts(dispatch(good_), {"dispatch", "in flight", "2", "fewer than 2",
                                 "ChannelConfig::depth", Code::exhausted});  // 15
  serve_one(channel_);
  serve_one(channel_);
  EXPECT_TRUE(bool(channel_.combine(first, {out_.data()})));
  EXPECT_TRUE(bool(channel_.combine(second, {out_.data()})));
}

TEST_F(Misuse, Combine) {
  Ticket none;  // 16
  expect_parts(channel_.combine(none, {out_.data()}),
               {"combine", "ticket", "empty", "dispatch", "Channel::dispatch"});
  Ticket ticket = good_ticket();
  serve_one(channel_);
  expect_parts(channel_.combine(ticket, {nullptr}),  // 17
               {"combine", "out", "nullptr", "memory", "ChannelConfig::hidden"});
  expect_parts(channel_.combine(ticket, {out_.data(), 100}),  // 18
               {"combine", "out.row_stride", "100", "128", "ChannelConfig::hidden"});
  ConstRows add{x_.data()};
  add.column_stride = 3;  // 19
  expect_parts(channel_.combine(ticket, {out_.data()}, add),
               {"combine", "add.column_stride", "3", "1", "ChannelConfig::hidden"});
  add = {x_.data(), 2};  // 20
  expect_parts(channel_.combine(ticket, {out_.data()}, add),
               {"combine", "add.row_stride", "2", "128", "ChannelConfig::hidden"});
  Channel other = open("other", Layout::rows);
  expect_parts(other.combine(ticket, {out_.data()}),  // 21
               {"combine", "ticket", "another channel", "this channel", "Channel::dispatch"});
  EXPECT_TRUE(bool(channel_.combine(ticket, {out_.data()})));
  expect_parts(channel_.combine(ticket, {out_.data()}),  // 22
               {"combine", "ticket", "empty", "dispatch", "Channel::dispatch"});
}

TEST_F(Misuse, Reply) {
  Ticket ticket = good_ticket();
  Batch none;  // 23
  expect_parts(channel_.reply(none, std::span<const Outputs>{}),
               {"reply", "batch", "empty", "receive", "Channel::receive"});
  Result<Batch> batch = channel_.receive();
  ASSERT_TRUE(bool(batch));
  expect_parts(channel_.reply(*batch, std::span<const Outputs>{}),  // 24
               {"reply", "outputs", "0", "1", "Batch::sources"});
  Outputs outputs{};
  expect_parts(channel_.reply(*batch, std::span{&outputs, 1}),  // 25
               {"reply", "outputs[0].base", "nullptr", "memory", "ChannelConfig::hidden"});
  y_.resize(64 * hidden);
  outputs = {y_.data(), 100, nullptr};
  expect_parts(channel_.reply(*batch, std::span{&outputs, 1}),  // 26
               {"reply", "row_stride", "100", "128", "ChannelConfig::hidden"});
  expect_parts(channel_.reply(*batch, Outputs{y_.data()}),  // 27
               {"reply", "outputs", "one array", "one per source", "ChannelConfig::layout"});
  Channel other = open("other", Layout::rows);
  outputs = {y_.data(), 0, nullptr};
  expect_parts(other.reply(*batch, std::span{&outputs, 1}),  // 28
               {"reply", "batch", "another channel", "this channel", "Channel::receive"});
  reply_well(channel_, *batch);
  EXPECT_TRUE(bool(channel_.combine(ticket, {out_.data()})));
}

TEST_F(Misuse, ReceiveAndArena) {
  ChannelConfig config = usual_channel(experts, top_k, hidden, max_tokens);
  config.name = "push";
  config.exchange = ExchangeKind::push;
  Result<Channel> push = group_.open(config);
  ASSERT_TRUE(bool(push)) << push.status().text();
  expect_parts(push->arena_acquire(1).status(),  // 29
               {"arena_acquire", "exchange", "push", "shared", "ChannelConfig::exchange"});
  config.name = "arena";
  config.exchange = ExchangeKind::shared;
  Result<Channel> shared = group_.open(config);
  ASSERT_TRUE(bool(shared)) << shared.status().text();
  expect_parts(shared->arena_acquire(max_tokens + 1).status(),  // 30
               {"arena_acquire", "tokens", "5", "4", "ChannelConfig::max_tokens"});
  const Timeout soon{std::chrono::milliseconds{20}};
  const Status late = channel_.receive(soon).status();
  EXPECT_EQ(late.code(), Code::timeout);
  EXPECT_EQ(channel_.try_receive().code(), Code::again);
  Ticket ticket = good_ticket();
  EXPECT_EQ(channel_.combine(ticket, {out_.data()}, {}, soon).code(), Code::timeout);
  EXPECT_EQ(channel_.try_combine(ticket, {out_.data()}).code(), Code::again);
  serve_one(channel_);
  EXPECT_TRUE(bool(channel_.combine(ticket, {out_.data()})));
}

TEST_F(Misuse, OpenAndCreate) {
  ChannelConfig config = usual_channel(experts, 9, hidden, max_tokens);
  config.name = "bad";
  expect_parts(group_.open(config).status(),  // 31
               {"open", "top_k", "9", "1..8", "ChannelConfig::top_k"});
  config.top_k = top_k;
  config.wire = DataType::i8;
  expect_parts(group_.open(config).status(),  // 32
               {"open", "wire", "i8", "bf16, f16 or f32", "ChannelConfig::wire"});
  config.wire = DataType::bf16;
  config.hidden = 0;
  expect_parts(group_.open(config).status(),
               {"open", "hidden", "0", "1..", "ChannelConfig::hidden"});
  config.hidden = hidden;
  config.depth = 17;
  expect_parts(group_.open(config).status(),
               {"open", "depth", "17", "1..16", "ChannelConfig::depth"});
  config.depth = 2;
  OpenOptions options;
  options.expert_worker = 1;
  expect_parts(group_.open(config, options).status(),  // 33
               {"open", "expert_worker", "1", "0..0", "GroupConfig::workers"});
  config.placement = Placement::block(experts + 1, 1);
  expect_parts(group_.open(config).status(),
               {"open", "placement", "9", "8", "ChannelConfig::experts"});
  GroupConfig group = GroupConfig::both(1, 0);
  group.name = "other";
  group.world_rank = 3;
  expect_parts(Group::create(group, store_).status(),
               {"create", "world_rank", "3", "0..0", "GroupConfig::world_rank"}, "rank 3");
  group = GroupConfig::both(1, 0);
  group.attention_rank = 1;
  expect_parts(Group::create(group, store_).status(),
               {"create", "attention_rank", "1", "0..0", "GroupConfig::attention_rank"});
  group = GroupConfig::both(1, 0);
  group.transport = "smoke signals";
  expect_parts(Group::create(group, store_).status(),
               {"create", "transport", "smoke signals", "inproc", "GroupConfig::transport"});
  expect_parts(Group::create(GroupConfig::both(1, 0), nullptr).status(),
               {"create", "store", "nullptr", "store", "create"});
}

TEST_F(Misuse, HandlesThatNameNothing) {
  Channel nothing;
  Ticket ticket;
  Batch batch;
  EXPECT_EQ(nothing.dispatch(good_).code(), Code::invalid);
  EXPECT_EQ(nothing.combine(ticket, {out_.data()}).code(), Code::invalid);
  EXPECT_EQ(nothing.receive().code(), Code::invalid);
  EXPECT_EQ(nothing.reply(batch, Outputs{}).code(), Code::invalid);
  EXPECT_EQ(nothing.drain().code(), Code::invalid);
  EXPECT_EQ(nothing.progress().code(), Code::invalid);
  nothing.abort();
  EXPECT_FALSE(bool(nothing.close()) && nothing);
  EXPECT_EQ(receive_any({}).code(), Code::invalid);
  Group no_group;
  EXPECT_EQ(no_group.open(ChannelConfig{}).code(), Code::invalid);
  EXPECT_EQ(no_group.progress().code(), Code::invalid);
}

TEST_F(Misuse, AfterCloseAndAbort) {
  for (const bool abort : {false, true}) {
    Channel channel = open(abort ? "aborted" : "closed", Layout::rows);
    Result<Ticket> ticket = channel.dispatch(good_);
    ASSERT_TRUE(bool(ticket));
    if (abort) {
      channel.abort();
    } else {
      EXPECT_TRUE(bool(channel.close()));
    }
    const Code code = abort ? Code::aborted : Code::closed;
    EXPECT_EQ(channel.dispatch(good_).code(), code);
    // An open operation was cut off; a new call comes too late.
    EXPECT_EQ(channel.combine(*ticket, {out_.data()}).code(), abort ? code : Code::cancelled);
    EXPECT_EQ(channel.receive().code(), code);
    EXPECT_EQ(channel.drain().code(), code);
    EXPECT_FALSE(channel.dispatch(good_).status().text().empty());
  }
}

// A rank without the role.
TEST(MisuseRoles, VerbsOfTheOtherRole) {
  RankSet set;
  run_ranks(set, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(usual_channel(experts, top_k, hidden, max_tokens));
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) {
      expect_parts(channel->receive().status(),
                   {"receive", "role", "not expert", "expert", "expert_rank"});
    } else {
      expect_parts(
          channel->dispatch({}).status(),
          {"dispatch", "role", "not attention", "attention", "GroupConfig::attention_rank"},
          "rank 1");
    }
  });
}

// I-09 among several: the refused rank dispatches nothing instead, and nobody hangs.
TEST(I09, OnlyOneOfThreeHasABadToken) {
  for (const char* transport : {"inproc", "shm"}) {
    Scenario scenario;
    scenario.ranks.attention = 3;
    scenario.ranks.experts = 2;
    scenario.ranks.transport = transport;
    scenario.channel = usual_channel(experts, top_k, hidden, max_tokens);
    scenario.channel.placement = Placement::block(experts, 2);
    scenario.steps = 4;
    const ChannelConfig config = scenario.channel;
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      return standard_inputs(config, a, a == 0 ? 0 : 3, step);
    };
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.attends() && rank.attention() == 0) {
        const std::array<std::int32_t, 4> ids{0, 1, 2, 8};
        const std::vector<std::uint16_t> x(2 * hidden);
        Dispatch bad;
        bad.tokens = 2;
        bad.x = {x.data()};
        bad.ids = ExpertIds{ids.data()};
        EXPECT_EQ(channel->dispatch(bad).code(), Code::invalid);
      }
      EXPECT_TRUE(rank.attends() ? run_attention(scenario, expected, rank, *channel)
                                 : run_expert(scenario, expected, rank, *channel));
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

}  // namespace
}  // namespace m2n::testing
