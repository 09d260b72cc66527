// What goes into a batch, what is refused, how long a receive waits and what it says when it gives
// up. Ranks have both roles and are all driven by the test's thread: nothing depends on timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/slot.hpp"
#include "tests/cases/hook_scope.hpp"
#include "tests/threads/lanes.hpp"

namespace m2n::testing {
namespace {

using collectives::SlotHeader;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr Timeout soon{milliseconds{20}};

struct Lanes {
  std::vector<Group> groups;
  std::vector<Channel> channels;
  Channel& operator[](std::size_t rank) { return channels[rank]; }
};

Lanes lanes_of(std::uint32_t ranks, const ChannelConfig& config,
               const std::function<void(GroupConfig&)>& adjust = {}) {
  Lanes lanes{make_groups(ranks, 1, adjust), {}};
  lanes.channels = open_everywhere(lanes.groups, config, {0, 0, double_batch});
  EXPECT_EQ(lanes.channels.size(), ranks);
  return lanes;
}

ChannelConfig touched(std::uint32_t experts, const char* name = "lane") {
  ChannelConfig config = lane_config(experts, name);
  config.presence = Presence::touched;
  return config;
}

// All tokens to one expert, which lives on the rank of that number.
Ticket send_to(Channel& channel, std::int32_t expert, float value, std::uint32_t layer = 0) {
  const std::vector<float> x(std::size_t{lane_tokens} * lane_hidden, value);
  const std::vector<std::int32_t> ids(lane_tokens, expert);
  Dispatch dispatch;
  dispatch.tokens = lane_tokens;
  dispatch.x = {x.data()};
  dispatch.ids = ids.data();
  dispatch.layer = layer;
  Result<Ticket> ticket = channel.dispatch(dispatch);
  EXPECT_TRUE(ticket) << ticket.status().text();
  return ticket ? std::move(*ticket) : Ticket{};
}

std::vector<std::uint32_t> sources_of(const Result<Batch>& batch) {
  std::vector<std::uint32_t> sources;
  if (!batch) return sources;
  for (const BatchSource& source : batch->sources()) sources.push_back(source.attention_rank);
  return sources;
}

void expect_parts(const Status& status, Code code, std::initializer_list<const char*> parts) {
  EXPECT_EQ(status.code(), code) << status.text();
  for (const char* part : parts) {
    EXPECT_NE(status.text().find(part), std::string::npos)
        << "no " << part << ": " << status.text();
  }
}

Status combine(Channel& channel, Ticket& ticket) {
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  return channel.combine(ticket, {out.data()}, {}, soon);
}

// Rounds from world rank 1 to expert rank 0 are damaged while it lives.
HookScope damage(const std::function<void(SlotHeader&)>& edit) {
  return HookScope{[edit](const HookEvent& event) {
    if (event.point == HookPoint::header_written && event.world_rank == 1 && event.peer == 0)
      edit(*reinterpret_cast<SlotHeader*>(event.slot));
  }};
}

using Sources = std::vector<std::uint32_t>;

TEST(Touched, AMalformedSourceIsRefusedAlone) {
  Lanes lanes = lanes_of(3, touched(3));
  std::vector<Ticket> tickets;
  {
    const HookScope scope = damage([](SlotHeader& header) { header.rows = 99; });
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      tickets.push_back(send_to(lanes[rank], 0, static_cast<float>(rank)));
  }
  expect_parts(lanes[0].receive().status(), Code::invalid, {"world rank 1", "99 rows"});
  Result<Batch> batch = lanes[0].receive();
  EXPECT_EQ(sources_of(batch), (Sources{0, 2}));
  ASSERT_TRUE(double_batch(lanes[0], *batch));
  EXPECT_EQ(lanes[0].try_receive().code(), Code::again) << "the error is told once";
  EXPECT_TRUE(take_back(lanes[0], tickets[0], 0));
  expect_parts(combine(lanes[1], tickets[1]), Code::unavailable, {"answered invalid"});
  EXPECT_TRUE(take_back(lanes[2], tickets[2], 2));
  Ticket next = send_to(lanes[1], 0, 5);
  ASSERT_TRUE(answer(lanes[0]));
  EXPECT_TRUE(take_back(lanes[1], next, 5));
}

TEST(Lockstep, OneMalformedSourceEndsTheOperationOfAll) {
  Lanes lanes = lanes_of(3, lane_config(3));
  std::vector<Ticket> tickets;
  {
    const HookScope scope = damage([](SlotHeader& header) { header.rows = 99; });
    for (std::uint32_t rank = 0; rank < 3; ++rank) tickets.push_back(send_to(lanes[rank], 0, 1));
  }
  expect_parts(lanes[0].receive().status(), Code::invalid, {"world rank 1", "99 rows"});
  EXPECT_EQ(lanes[0].try_receive().code(), Code::again);
  EXPECT_TRUE(answer(lanes[1]));
  EXPECT_TRUE(answer(lanes[2]));
  const char* answers[] = {"answered unserved", "answered invalid", "answered unserved"};
  for (std::size_t rank = 0; rank < 3; ++rank)
    expect_parts(combine(lanes[rank], tickets[rank]), Code::unavailable, {answers[rank]});
}

// A round that was routed with another placement is not believed, even if it is empty.
TEST(Placement, OfAnotherVersionOrHashIsRefused) {
  const std::uint64_t hash = Placement::block(2, 2).hash() & 0xffff;
  const std::string ours = "version 0 (hash " + std::to_string(hash) + ")";
  const std::string other_hash = "version 0 (hash " + std::to_string(hash ^ 1) + ")";
  const std::string other_version = "version 7 (hash " + std::to_string(hash) + ")";
  for (const bool version : {false, true}) {
    for (const Presence presence : {Presence::every, Presence::touched}) {
      for (const std::int32_t expert : {0, 1}) {  // 1: the round to rank 0 is empty
        if (presence == Presence::touched && expert == 1) continue;
        ChannelConfig config = lane_config(2);
        config.presence = presence;
        Lanes lanes = lanes_of(2, config);
        const HookScope scope = damage([version](SlotHeader& header) {
          if (version) header.placement_version = 7;
          if (!version) header.placement_hash ^= 1;
        });
        Ticket right = send_to(lanes[0], expert, 1);
        Ticket wrong = send_to(lanes[1], expert, 1);
        expect_parts(
            lanes[0].receive().status(), Code::invalid,
            {"world rank 1", (version ? other_version : other_hash).c_str(), ours.c_str()});
        if (presence == Presence::every) {
          EXPECT_TRUE(answer(lanes[1]));
        }
        if (expert == 0) {
          expect_parts(combine(lanes[1], wrong), Code::unavailable, {"answered invalid"});
        } else {
          EXPECT_TRUE(take_back(lanes[1], wrong, 1)) << "no token needed rank 0";
        }
      }
    }
  }
}

TEST(MinSources, CountsThoseOfTheBatchsLayer) {
  Lanes lanes = lanes_of(3, touched(3));
  const ReceivePolicy two{.min_sources = 2, .max_wait = std::chrono::hours{1}};
  Ticket first = send_to(lanes[0], 0, 1, 0);
  EXPECT_EQ(lanes[0].try_receive(two).code(), Code::again);
  Ticket other = send_to(lanes[1], 0, 1, 1);
  EXPECT_EQ(lanes[0].try_receive(two).code(), Code::again) << "one of each layer";
  Ticket second = send_to(lanes[2], 0, 1, 0);
  Result<Batch> batch = lanes[0].try_receive(two);
  EXPECT_EQ(sources_of(batch), (Sources{0, 2}));
  ASSERT_TRUE(batch && double_batch(lanes[0], *batch));
  EXPECT_EQ(lanes[0].try_receive(two).code(), Code::again) << "others may still come to layer 1";
  batch = lanes[0].try_receive();
  EXPECT_EQ(sources_of(batch), Sources{1});
  ASSERT_TRUE(batch && double_batch(lanes[0], *batch));
  EXPECT_TRUE(take_back(lanes[0], first, 1) && take_back(lanes[1], other, 1) &&
              take_back(lanes[2], second, 1));
}

TEST(MinSources, NobodyWaitsForThoseThatCannotCome) {
  Lanes lanes = lanes_of(3, touched(3));
  const ReceivePolicy all{.min_sources = 3, .max_wait = std::chrono::hours{1}};
  std::vector<Ticket> tickets(3);
  for (const std::uint32_t rank : {2u, 0u, 1u}) {
    EXPECT_EQ(lanes[0].try_receive(all).code(), Code::again);
    tickets[rank] = send_to(lanes[rank], 0, 1, rank);
  }
  // All wait, each with a layer of its own: the oldest goes first, and alone.
  Result<Batch> batch = lanes[0].try_receive(all);
  EXPECT_EQ(sources_of(batch), Sources{2});
  ASSERT_TRUE(batch && double_batch(lanes[0], *batch));
  EXPECT_EQ(lanes[0].try_receive(all).code(), Code::again);
  EXPECT_TRUE(take_back(lanes[2], tickets[2], 1));
  EXPECT_TRUE(lanes[2].close());
  batch = lanes[0].receive({}, all);
  EXPECT_EQ(sources_of(batch), Sources{0});
  ASSERT_TRUE(batch && double_batch(lanes[0], *batch));
  EXPECT_EQ(lanes[0].try_receive(all).code(), Code::again) << "rank 0 may come again";
}

TEST(MinSources, AcrossLayersCountsAll) {
  ChannelConfig config = touched(3);
  config.across_layers = true;
  Lanes lanes = lanes_of(3, config);
  const ReceivePolicy two{.min_sources = 2, .max_wait = std::chrono::hours{1}};
  const Ticket first = send_to(lanes[1], 0, 1, 8);
  EXPECT_EQ(lanes[0].try_receive(two).code(), Code::again);
  const Ticket second = send_to(lanes[2], 0, 1, 9);
  EXPECT_EQ(sources_of(lanes[0].try_receive(two)), (Sources{1, 2}));
}

TEST(MaxWait, ThenFewerSourcesAreEnough) {
  Lanes lanes = lanes_of(2, touched(2));
  const ReceivePolicy two{.min_sources = 2, .max_wait = milliseconds{30}};
  const Clock::time_point start = Clock::now();
  Ticket ticket = send_to(lanes[1], 0, 1);
  Result<Batch> batch = lanes[0].receive(Timeout::never(), two);
  EXPECT_GE(Clock::now() - start, milliseconds{30});
  EXPECT_EQ(sources_of(batch), Sources{1});
}

// One that sleeps wakes up in time, although nobody rings.
TEST(MaxWait, IsKeptWhileReceiveAnySleeps) {
  std::vector<Group> groups =
      make_groups(2, 1, [](GroupConfig& config) { config.wait = Wait::sleep; });
  std::vector<Channel> a = open_everywhere(groups, touched(2, "a"), {});
  std::vector<Channel> b = open_everywhere(groups, touched(2, "b"), {});
  ASSERT_EQ(a.size() + b.size(), 4u);
  std::vector<Channel> both{a[0], b[0]};
  const ReceivePolicy two{.min_sources = 2, .max_wait = milliseconds{1}};
  Clock::duration shortest = Clock::duration::max();
  for (int i = 0; i < 10; ++i) {
    const Clock::time_point start = Clock::now();
    Ticket ticket = send_to(b[1], 0, 1);
    Result<AnyBatch> any = receive_any(both, Timeout::never(), two);
    shortest = std::min(shortest, Clock::now() - start);
    ASSERT_TRUE(any);
    EXPECT_EQ(any->index, 1u);
    ASSERT_TRUE(double_batch(b[0], any->batch));
    EXPECT_TRUE(take_back(b[1], ticket, 1));
  }
  EXPECT_LT(shortest, milliseconds{15}) << "a sleep without a limit takes 20 ms";
}

TEST(Timeouts, ZeroAsksOnce) {
  Lanes lanes = lanes_of(1, lane_config(1));
  const Timeout now{std::chrono::nanoseconds{0}};
  for (int i = 0; i < 3; ++i) {
    expect_parts(lanes[0].receive(now).status(), Code::timeout, {"receive", "world rank 0"});
    Ticket ticket = send_to(lanes[0], 0, 1);
    std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
    expect_parts(lanes[0].combine(ticket, {out.data()}, {}, now), Code::timeout, {"combine"});
    Result<Batch> batch = lanes[0].receive(now);
    ASSERT_TRUE(batch) << batch.status().text();
    ASSERT_TRUE(double_batch(lanes[0], *batch));
    EXPECT_TRUE(lanes[0].combine(ticket, {out.data()}, {}, now));
  }
  EXPECT_TRUE(lanes[0].drain(now));
}

TEST(ReceiveAny, ATimeOutNamesEveryChannelAndItsPeer) {
  std::vector<Group> groups = make_groups(2, 1);
  std::vector<Channel> a = open_everywhere(groups, lane_config(2, "a"), {});
  std::vector<Channel> b = open_everywhere(groups, lane_config(2, "b"), {});
  ASSERT_EQ(a.size() + b.size(), 4u);
  const Ticket on_a = send_to(a[0], 0, 1);
  const Ticket on_b = send_to(b[1], 0, 1);
  std::vector<Channel> both{a[0], b[0]};
  const Status status = receive_any(both, soon).status();
  expect_parts(status, Code::timeout,
               {"receive_any", "channel \"a\" still waits for attention rank 1",
                "channel \"b\" still waits for attention rank 0", "TIMEOUT_MS"});
  EXPECT_EQ(status.peer(), -1);
  EXPECT_EQ(receive_any({both.data(), 1}, soon).status().peer(), 1);
  EXPECT_EQ(receive_any({both.data() + 1, 1}, soon).status().peer(), 0);
  EXPECT_GE(a[0].expert_statistics().peers[1].wait_ns, 40'000'000u);
  EXPECT_GE(b[0].expert_statistics().peers[0].wait_ns, 40'000'000u);
  EXPECT_EQ(a[0].expert_statistics().peers[0].wait_ns, 0u);
}

// serve: waiting counts, computing does not.
TEST(Statistics, ServeCountsItsWaitWithoutTheExpertFunction) {
  std::vector<Group> groups = make_groups(2, 1);
  Clock::duration computed{0};
  const auto slow = [&](Channel& channel, Batch& batch) {
    const Clock::time_point start = Clock::now();
    std::this_thread::sleep_for(milliseconds{20});
    Status status = double_batch(channel, batch);
    computed += Clock::now() - start;
    return status;
  };
  std::vector<Channel> channels = open_everywhere(groups, lane_config(2), {0, 0, slow});
  ASSERT_EQ(channels.size(), 2u);
  Ticket mine = send_to(channels[0], 1, 1);
  const Ticket theirs = send_to(channels[1], 0, 1);
  std::vector<float> out(std::size_t{lane_tokens} * lane_hidden);
  computed = Clock::duration{0};
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(channels[0].serve(mine, {out.data()}, {}, Timeout{milliseconds{60}}).code(),
            Code::timeout);
  const Clock::duration elapsed = Clock::now() - start;
  const auto waited = std::chrono::nanoseconds{channels[0].attention_statistics().peers[1].wait_ns};
  EXPECT_GE(computed, milliseconds{20});
  EXPECT_GE(waited, milliseconds{1});
  EXPECT_LE(waited, elapsed - computed + milliseconds{1});
}

TEST(Statistics, WireBytesOfBothRolesAreEqual) {
  for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
    for (const Presence presence : {Presence::every, Presence::touched}) {
      ChannelConfig config = lane_config(3);
      config.exchange = exchange;
      config.presence = presence;
      Lanes lanes = lanes_of(3, config);
      std::uint64_t sent = 0;
      std::uint64_t received = 0;
      for (int step = 0; step < 4; ++step) {
        std::vector<Ticket> tickets;
        for (Channel& channel : lanes.channels) tickets.push_back(*send(channel, 1));
        for (Channel& channel : lanes.channels) ASSERT_TRUE(answer(channel));
        for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(take_back(lanes[i], tickets[i], 1));
      }
      std::uint64_t replied = 0;
      for (Channel& channel : lanes.channels) {
        sent += channel.attention_statistics().wire_bytes;
        received += channel.expert_statistics().wire_bytes;
        replied += channel.expert_statistics().reply_bytes;
      }
      EXPECT_EQ(sent, received);
      EXPECT_EQ(replied, 4 * (9 * 64 + 3 * lane_tokens * lane_hidden * sizeof(float)));
    }
  }
}

}  // namespace
}  // namespace m2n::testing
