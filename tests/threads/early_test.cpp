// Batches that are given while their rows are still on their way. One thread drives both ranks: the
// expert rank acts from within the attention rank's dispatch, whenever that has told of a piece.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "collectives/slot.hpp"
#include "tests/cases/hook_scope.hpp"
#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

constexpr std::uint32_t hidden = 2048;  // of f32: two pieces hold a row each at the least
constexpr std::uint32_t tokens = 8;
constexpr Timeout soon{std::chrono::milliseconds{5}};

ReceivePolicy early() {
  ReceivePolicy policy;
  policy.early = true;
  return policy;
}

// An attention rank and an expert rank.
class EarlyBatch : public ::testing::Test {
 protected:
  void SetUp() override {
    groups_ = make_groups(2, 1, [](GroupConfig& config) {
      config = GroupConfig::split(1, 1, config.world_rank);
      config.transport = "inproc";
    });
    ASSERT_EQ(groups_.size(), 2u);
    open({});
  }
  void open(const std::function<void(ChannelConfig&)>& adjust) {
    channels_.clear();
    ChannelConfig config = lane_config(1);
    config.hidden = hidden;
    config.max_tokens = tokens;
    if (adjust) adjust(config);
    channels_ = open_everywhere(groups_, config, {});
    ASSERT_EQ(channels_.size(), 2u);
  }
  Channel& attention() { return channels_[0]; }
  Channel& expert() { return channels_[1]; }

  // Runs `act` from within dispatch at every piece.
  Ticket dispatch(float value, const std::function<void()>& act = {}) {
    std::vector<float> x(std::size_t{tokens} * hidden);
    for (std::uint32_t i = 0; i < x.size(); ++i)
      x[i] = value + static_cast<float>(i / hidden) + static_cast<float>(i % hidden % 7);
    const std::vector<std::int32_t> ids(tokens, 0);
    Dispatch call;
    call.tokens = tokens;
    call.x = {x.data()};
    call.ids = ids.data();
    HookScope hook{[&](const HookEvent& event) {
      if (event.point == HookPoint::piece_told && act) act();
    }};
    Result<Ticket> ticket = attention().dispatch(call);
    EXPECT_TRUE(ticket) << ticket.status().text();
    return ticket ? std::move(*ticket) : Ticket{};
  }
  static bool right(const float* row, std::uint32_t token, float value) {
    for (std::uint32_t h = 0; h < hidden; ++h) {
      if (row[h] != value + static_cast<float>(token) + static_cast<float>(h % 7)) return false;
    }
    return true;
  }
  static bool rows_right(const Batch& batch, std::uint32_t rows, float value) {
    for (std::uint32_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(batch.sources()[0].payload(r));
      if (!right(row, r, value)) return false;
    }
    return true;
  }
  // y = x, from the batch's own rows.
  static Outputs echo(const Batch& batch) {
    return {batch.sources()[0].base, batch.sources()[0].row_stride_bytes, nullptr};
  }
  Status combine(Ticket& ticket) {
    out_.resize(std::size_t{tokens} * hidden, -1);  // kept: tries go on where the last one ended
    return attention().combine(ticket, {out_.data()}, {}, soon);
  }
  bool out_right(float value) const {
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (!right(out_.data() + std::size_t{t} * hidden, t, value)) return false;
    }
    return true;
  }

  std::vector<Group> groups_;
  std::vector<Channel> channels_;
  std::vector<float> out_;
};

TEST_F(EarlyBatch, IsReadAndAnsweredWhileItsRowsCome) {
  for (float value = 1; value < 7; ++value) {
    Batch batch;
    std::uint32_t answered = 0;
    std::uint32_t pieces = 0;
    Ticket ticket = dispatch(value, [&] {
      if (!batch) {
        EXPECT_EQ(expert().try_receive().code(), Code::again) << "it is not complete";
        Result<Batch> got = expert().try_receive(early());
        ASSERT_TRUE(got) << got.status().text();
        batch = std::move(*got);
      }
      ++pieces;
      const std::uint32_t ready = batch.rows_ready(0);
      EXPECT_GT(ready, answered);
      EXPECT_LT(ready, tokens);
      EXPECT_TRUE(rows_right(batch, ready, value));
      EXPECT_TRUE(expert().await_rows(batch, 0, ready));
      EXPECT_TRUE(expert().reply_rows(batch, 0, ready, echo(batch)));
      answered = ready;
    });
    EXPECT_GE(pieces, 3u);
    EXPECT_EQ(batch.rows_ready(0), tokens);
    EXPECT_TRUE(rows_right(batch, tokens, value));
    EXPECT_EQ(combine(ticket).code(), Code::timeout) << "the last rows were not answered";
    EXPECT_TRUE(expert().reply_rows(batch, 0, tokens, echo(batch)));
    EXPECT_FALSE(batch) << "it is used up";
    EXPECT_TRUE(combine(ticket));
    EXPECT_TRUE(out_right(value));
  }
}

TEST_F(EarlyBatch, WhatHasNotComeCannotBeAnsweredOrAwaitedForever) {
  Ticket ticket = dispatch(1, [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    Result<Batch> batch = expert().try_receive(early());
    ASSERT_TRUE(batch);
    const std::uint32_t more = batch->rows_ready(0) + 1;
    const Outputs outputs = echo(*batch);
    for (const Status& refused :
         {expert().reply_rows(*batch, 0, more, outputs),
          expert().reply(*batch, std::span{&outputs, 1}),
          expert().reply_rows(*batch, 1, 0, outputs),
          expert().reply_rows(*batch, 0, tokens + 1, outputs),
          expert().await_rows(*batch, 0, tokens + 1), expert().await_rows(*batch, 1, 0)}) {
      EXPECT_EQ(refused.code(), Code::invalid);
      EXPECT_NE(refused.text().find("rank 1"), std::string::npos) << refused.text();
    }
    const Status late = expert().await_rows(*batch, 0, more, soon);
    EXPECT_EQ(late.code(), Code::timeout);
    EXPECT_EQ(late.peer(), 0);
    EXPECT_NE(late.text().find("await_rows: operation 0"), std::string::npos) << late.text();
    EXPECT_TRUE(*batch) << "a refusal uses nothing up";
  });  // dropped, and that answers `unserved`
  EXPECT_EQ(combine(ticket).code(), Code::unavailable);
}

TEST_F(EarlyBatch, AReplyThatIsGivenUpHalfwayIsUnserved) {
  Ticket ticket = dispatch(1);
  {
    Result<Batch> batch = expert().receive(soon, early());
    ASSERT_TRUE(batch);
    EXPECT_TRUE(expert().reply_rows(*batch, 0, tokens - 1, echo(*batch)));
    out_.assign(std::size_t{tokens} * hidden, -1);
    EXPECT_EQ(attention().try_combine(ticket, {out_.data()}).code(), Code::again);
  }
  const Status status = combine(ticket);
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.text().find("answered unserved, tokens without it: 0 1"), std::string::npos)
      << status.text();
  ticket = dispatch(2);
  Result<Batch> batch = expert().receive(soon);
  ASSERT_TRUE(batch);
  const Outputs outputs = echo(*batch);
  EXPECT_TRUE(expert().reply(*batch, std::span{&outputs, 1}));
  EXPECT_TRUE(combine(ticket));
}

// The rows that came before it was given up count for nothing; what other experts say stands.
TEST(EarlyReply, WhatIsGivenUpIsTakenOutOfTheSum) {
  std::vector<Group> groups = make_groups(3, 1, [](GroupConfig& config) {
    config = GroupConfig::split(1, 2, config.world_rank);
    config.transport = "inproc";
  });
  ASSERT_EQ(groups.size(), 3u);
  ChannelConfig config = lane_config(2);
  config.hidden = hidden;
  config.max_tokens = tokens;
  config.top_k = 2;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 3u);
  std::vector<std::int32_t> ids;
  for (std::uint32_t t = 0; t < tokens; ++t) ids.insert(ids.end(), {0, 1});
  for (std::uint32_t operation = 0; operation < 4; ++operation) {
    const bool give_up = operation >= 2;  // then the slot holds what an older round left
    const std::vector<float> x(std::size_t{tokens} * hidden, static_cast<float>(operation + 1));
    std::vector<float> out(x.size(), -1);
    Dispatch call;
    call.tokens = tokens;
    call.x = {x.data()};
    call.ids = ids.data();
    Result<Ticket> ticket = channels[0].dispatch(call);
    ASSERT_TRUE(ticket) << ticket.status().text();
    for (std::size_t expert : {1, 2}) {
      Result<Batch> batch = channels[expert].receive(soon, early());
      ASSERT_TRUE(batch) << batch.status().text();
      const BatchSource& source = batch->sources()[0];
      const std::uint32_t rows = give_up && expert == 1 ? tokens / 2 : tokens;
      ASSERT_TRUE(channels[expert].reply_rows(*batch, 0, rows,
                                              {source.base, source.row_stride_bytes, nullptr}));
      const Code code = channels[0].try_combine(*ticket, {out.data()}).code();
      EXPECT_EQ(code, expert == 1 ? Code::again : give_up ? Code::unavailable : Code::ok);
    }
    if (!give_up) continue;
    EXPECT_EQ(out, x) << "of the second expert alone";
  }
}

// An addend that lies where the sums go is there once: nothing is written before it is certain.
TEST(EarlyReply, WhatIsGivenUpLeavesAnAddendInPlace) {
  std::vector<Group> groups = make_groups(2, 1, [](GroupConfig& config) {
    config = GroupConfig::split(1, 1, config.world_rank);
    config.transport = "inproc";
  });
  ASSERT_EQ(groups.size(), 2u);
  ChannelConfig config = lane_config(1);
  config.hidden = hidden;
  config.max_tokens = tokens;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 2u);
  const std::vector<std::int32_t> ids(tokens, 0);
  const std::vector<float> x(std::size_t{tokens} * hidden, 1);
  for (const bool give_up : {false, true}) {
    std::vector<float> out(x.size(), 10);
    Dispatch call;
    call.tokens = tokens;
    call.x = {x.data()};
    call.ids = ids.data();
    Result<Ticket> ticket = channels[0].dispatch(call);
    ASSERT_TRUE(ticket);
    Result<Batch> batch = channels[1].receive(soon, early());
    ASSERT_TRUE(batch);
    const Outputs y{batch->sources()[0].base, batch->sources()[0].row_stride_bytes, nullptr};
    ASSERT_TRUE(channels[1].reply_rows(*batch, 0, tokens / 2, y));
    EXPECT_EQ(channels[0].try_combine(*ticket, {out.data()}, {out.data()}).code(), Code::again);
    if (give_up) {
      *batch = Batch{};
    } else {
      ASSERT_TRUE(channels[1].reply_rows(*batch, 0, tokens, y));
    }
    EXPECT_EQ(channels[0].combine(*ticket, {out.data()}, {out.data()}, soon).code(),
              give_up ? Code::unavailable : Code::ok);
    EXPECT_EQ(out, std::vector<float>(out.size(), give_up ? 10.0f : 11.0f));
  }
}

TEST_F(EarlyBatch, IsCombinedIntoAnotherBufferAfterATimeOut) {
  Ticket ticket = dispatch(1);
  Result<Batch> batch = expert().receive(soon, early());
  ASSERT_TRUE(batch);
  ASSERT_TRUE(expert().reply_rows(*batch, 0, tokens / 2, echo(*batch)));
  std::vector<float> other(std::size_t{tokens} * hidden, -1);
  EXPECT_EQ(attention().combine(ticket, {other.data()}, {}, soon).code(), Code::timeout);
  ASSERT_TRUE(expert().reply_rows(*batch, 0, tokens, echo(*batch)));
  EXPECT_TRUE(combine(ticket));
  EXPECT_TRUE(out_right(1));
}

// A peer without a credit that raises its word all the same.
TEST_F(EarlyBatch, IsNotOverwrittenByARoundThatHasNoCredit) {
  open([](ChannelConfig& config) { config.depth = 1; });
  collectives::SlotHeader* header = nullptr;
  std::vector<float> x(std::size_t{tokens} * hidden, 1);
  const std::vector<std::int32_t> ids(tokens, 0);
  Dispatch call;
  call.tokens = tokens;
  call.x = {x.data()};
  call.ids = ids.data();
  Result<Ticket> ticket{Code::again};
  {
    HookScope hook{[&](const HookEvent& event) {
      if (event.point == HookPoint::header_written)
        header = reinterpret_cast<collectives::SlotHeader*>(event.slot);
    }};
    ticket = attention().dispatch(call);
  }
  ASSERT_TRUE(ticket);
  ASSERT_NE(header, nullptr);
  Result<Batch> batch = expert().receive(soon);
  ASSERT_TRUE(batch);
  ++header->word;
  EXPECT_EQ(expert().try_receive().code(), Code::again);
  EXPECT_EQ(batch->sources()[0].pairs.size(), tokens);
  const Outputs outputs = echo(*batch);
  EXPECT_TRUE(expert().reply(*batch, std::span{&outputs, 1}));
  EXPECT_TRUE(combine(*ticket));
}

// A source that has been answered may send again before its batch is used up.
TEST(EarlyReply, TwoRoundsOfASourceInTwoBatches) {
  std::vector<Group> groups =
      make_groups(2, 1, [](GroupConfig& config) { config.transport = "inproc"; });
  ASSERT_EQ(groups.size(), 2u);
  ChannelConfig config = lane_config(2);
  config.presence = Presence::touched;
  config.depth = 1;
  std::vector<Channel> channels = open_everywhere(groups, config, {});
  ASSERT_EQ(channels.size(), 2u);
  Channel& expert = channels[0];
  const std::vector<std::int32_t> ids(lane_tokens, 0);
  const auto send = [&](std::size_t rank, float value) {
    const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, value);
    Dispatch call;
    call.tokens = lane_tokens;
    call.x = {x.data()};
    call.ids = ids.data();
    Result<Ticket> ticket = channels[rank].dispatch(call);
    EXPECT_TRUE(ticket) << ticket.status().text();
    return ticket ? std::move(*ticket) : Ticket{};
  };
  const auto back = [&](std::size_t rank, Ticket& ticket, float value) {
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden, -1);
    const Status status = channels[rank].combine(ticket, {out.data()}, {}, soon);
    EXPECT_TRUE(status) << status.text();
    return out == std::vector<float>(out.size(), value);
  };
  const auto echo = [](const BatchSource& source) {
    return Outputs{source.base, source.row_stride_bytes, nullptr};
  };
  for (const bool drop : {false, true}) {
    Ticket a = send(0, 1);
    Ticket b = send(1, 2);
    ReceivePolicy both;
    both.min_sources = 2;
    Result<Batch> first = expert.receive(soon, both);
    ASSERT_TRUE(first) << first.status().text();
    ASSERT_EQ(first->sources().size(), 2u);
    ASSERT_TRUE(expert.reply_rows(*first, 0, lane_tokens, echo(first->sources()[0])));
    EXPECT_TRUE(back(0, a, 1));
    a = send(0, 3);
    Result<Batch> second = expert.receive(soon);
    ASSERT_TRUE(second) << second.status().text();
    ASSERT_TRUE(expert.reply_rows(*second, 0, lane_tokens / 2, echo(second->sources()[0])));
    if (drop) {
      *first = Batch{};
      EXPECT_EQ(channels[1].combine(b, {std::vector<float>(1000).data()}, {}, soon).code(),
                Code::unavailable);
    } else {
      const Outputs rest[] = {{}, echo(first->sources()[1])};
      const Status left = expert.reply(*first, rest);
      EXPECT_TRUE(left) << left.text();
      EXPECT_TRUE(back(1, b, 2));
    }
    ASSERT_TRUE(expert.reply_rows(*second, 0, lane_tokens, echo(second->sources()[0])));
    EXPECT_FALSE(*second);
    EXPECT_TRUE(back(0, a, 3));
  }
}

TEST_F(EarlyBatch, IsRefusedForGroupedLayouts) {
  open([](ChannelConfig& config) { config.layout = Layout::grouped; });
  Ticket ticket = dispatch(1);
  const Status refused = expert().try_receive(early()).status();
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.text().find("policy.early"), std::string::npos);
  ReceivePolicy rows = early();
  rows.as_rows = true;
  Result<Batch> batch = expert().try_receive(rows);
  ASSERT_TRUE(batch) << batch.status().text();
  EXPECT_TRUE(expert().reply_rows(*batch, 0, tokens, echo(*batch)));
  EXPECT_TRUE(combine(ticket));
}

TEST_F(EarlyBatch, OfAnAggregatingChannel) {
  open([](ChannelConfig& config) { config.presence = Presence::touched; });
  Batch batch;
  Ticket ticket = dispatch(3, [&] {
    if (batch) return;
    EXPECT_EQ(expert().try_receive().code(), Code::again);
    Result<Batch> got = expert().try_receive(early());
    ASSERT_TRUE(got) << got.status().text();
    batch = std::move(*got);
    EXPECT_LT(batch.rows_ready(0), tokens);
  });
  ASSERT_TRUE(batch);
  EXPECT_TRUE(expert().await_rows(batch, 0, tokens, soon));
  EXPECT_TRUE(expert().reply_rows(batch, 0, tokens, echo(batch)));
  EXPECT_TRUE(combine(ticket));
  EXPECT_TRUE(out_right(3));
}

}  // namespace
}  // namespace m2n::testing
