// Slots, credits and operations in flight: I-03, I-05, I-61, dropped tickets and batches.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/cases/hook_scope.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

// Delays one rank at one point, by the library's hook.
struct Delay {
  std::uint32_t world_rank = 0;
  HookPoint point{};
  std::atomic<std::uint32_t> calls{0};

  void operator()(const HookEvent& event) {
    if (event.point != point || event.world_rank != world_rank) return;
    const std::uint32_t call = calls.fetch_add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds{call % 16 == 3 ? 20 : 1});
  }
};

void yield_at_random(const HookEvent& event) {
  thread_local Random random{event.world_rank * 7 + static_cast<std::uint32_t>(event.point)};
  if (random.chance(4)) std::this_thread::yield();
}

Scenario two_by_two(const ChannelConfig& config, std::uint32_t tokens, std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = 2;
  scenario.channel = config;
  scenario.channel.placement = Placement::block(config.experts, 2);
  scenario.steps = steps;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, tokens, step);
  };
  return scenario;
}

struct DelayedAt {
  std::uint32_t world_rank;
  HookPoint point;
};

TEST(I03, NothingIsOverwrittenWhateverIsSlow) {
  for (const DelayedAt& at :
       {DelayedAt{3, HookPoint::flag_seen_pre_copy}, DelayedAt{1, HookPoint::flag_seen_pre_read},
        DelayedAt{1, HookPoint::pre_ack}, DelayedAt{2, HookPoint::pre_combine_send},
        DelayedAt{0, HookPoint::header_written}}) {
    for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
      for (const std::uint32_t depth : {1u, 2u, 3u}) {
        Delay delay;
        delay.world_rank = at.world_rank;
        delay.point = at.point;
        const HookScope scope{std::ref(delay)};
        ChannelConfig config = usual_channel(4, 2, 256, 16);
        config.depth = depth;
        config.exchange = exchange;
        Scenario scenario = two_by_two(config, 16, 40);
        scenario.in_flight = depth;
        scenario.ranks.transport = depth == 2 ? "shm" : "inproc";
        run(scenario);
        EXPECT_GE(delay.calls.load(), 40u) << "the hook was not reached";
      }
    }
  }
}

TEST(I03, CreditsAreCountedContiguously) {
  ChannelConfig config = usual_channel(4, 2, 32, 4);
  config.depth = 2;
  const Scenario scenario = two_by_two(config, 4, 5);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.serves()) {
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
      EXPECT_TRUE(bool(channel->drain()));
      return;
    }
    std::vector<Ticket> tickets;
    std::vector<std::unique_ptr<AttentionStep>> steps;
    const auto dispatch = [&](std::uint32_t s) {
      auto step = std::make_unique<AttentionStep>(scenario, channel->config(),
                                                  expected.at(rank.attention(), s));
      Result<Ticket> ticket = step->dispatch(*channel);
      if (ticket) {
        tickets.push_back(std::move(*ticket));
        steps.push_back(std::move(step));
      }
      return ticket.code();
    };
    const auto combine = [&](std::uint32_t s) {
      EXPECT_TRUE(bool(channel->combine(tickets[s], steps[s]->out())));
      EXPECT_EQ(steps[s]->check(), "");
    };
    EXPECT_EQ(dispatch(0), Code::ok);
    EXPECT_EQ(dispatch(1), Code::ok);
    EXPECT_EQ(dispatch(2), Code::exhausted);
    combine(1);  // out of order: frees nothing
    EXPECT_EQ(dispatch(2), Code::exhausted);
    combine(0);
    EXPECT_EQ(dispatch(2), Code::ok);
    EXPECT_EQ(dispatch(3), Code::ok);
    EXPECT_EQ(dispatch(4), Code::exhausted);
    combine(2);
    EXPECT_EQ(dispatch(4), Code::ok);
    combine(3);
    combine(4);
    EXPECT_TRUE(bool(channel->drain()));
  });
}

TEST(I05, TwoMicroBatchesCombinedInReverse) {
  const HookScope scope{yield_at_random};
  Scenario scenario = two_by_two(usual_channel(4, 2, 64, 8), 8, 500);  // over each transport
  scenario.in_flight = 2;
  scenario.newest_first = true;
  scenario.ranks.guard = std::chrono::milliseconds{60'000};
  run_everywhere(scenario);
}

TEST(I05, ThreeInFlight) {
  const HookScope scope{yield_at_random};
  ChannelConfig config = usual_channel(4, 2, 64, 8);
  config.depth = 3;
  Scenario scenario = two_by_two(config, 8, 500);
  scenario.in_flight = 3;
  scenario.ranks.guard = std::chrono::milliseconds{60'000};
  run_everywhere(scenario);
}

TEST(I05, TwoChannelsOfTwoWorkers) {
  for (const char* transport : {"inproc", "shm"}) {
    Scenario scenario = two_by_two(usual_channel(4, 2, 64, 8), 8, 300);
    scenario.in_flight = 2;
    scenario.ranks.transport = transport;
    scenario.ranks.adjust = [](GroupConfig& config) { config.workers = 2; };
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      std::vector<Channel> channels;
      for (std::uint32_t worker = 0; worker < 2; ++worker) {
        ChannelConfig config = scenario.channel;
        config.name = worker == 0 ? "decode" : "prefill";
        config.phase = worker == 0 ? Phase::decode : Phase::prefill;
        Result<Channel> channel = rank.group.open(config, {worker, worker, {}});
        ASSERT_TRUE(bool(channel)) << channel.status().text();
        channels.push_back(*channel);
      }
      const auto work = [&](Channel& channel) {
        rank.attends() ? run_attention(scenario, expected, rank, channel)
                       : run_expert(scenario, expected, rank, channel);
        EXPECT_TRUE(bool(channel.drain()));
      };
      std::thread other{[&] { work(channels[1]); }};
      work(channels[0]);
      other.join();
    });
  }
}

// --- dropped tickets and batches
// --------------------------------------------------------------------

TEST(Dropped, EveryTicket) {
  for (const bool cancel : {false, true}) {
    ChannelConfig config = usual_channel(4, 2, 32, 4);
    Scenario scenario = two_by_two(config, 4, 60);
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.serves()) {
        EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
        EXPECT_TRUE(bool(channel->drain()));
        return;
      }
      for (std::uint32_t s = 0; s < scenario.steps; ++s) {
        rank.at("dispatch", s);
        // dispatch() scribbles over the step's arrays: a fresh one for every try.
        Result<Ticket> ticket{Code::exhausted};
        std::unique_ptr<AttentionStep> step;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (!ticket && ticket.code() == Code::exhausted &&
               std::chrono::steady_clock::now() < end) {
          EXPECT_TRUE(bool(channel->progress()));
          std::this_thread::yield();
          step = std::make_unique<AttentionStep>(scenario, channel->config(),
                                                 expected.at(rank.attention(), s));
          ticket = step->dispatch(*channel);
        }
        ASSERT_TRUE(bool(ticket)) << ticket.status().text();
        if (s % 10 == 9) {
          EXPECT_TRUE(bool(channel->combine(*ticket, step->out())));
          EXPECT_EQ(step->check(), "");
        } else if (cancel) {
          EXPECT_TRUE(bool(channel->cancel(*ticket)));
          EXPECT_FALSE(bool(*ticket));
        }
      }
      rank.at("drain");
      EXPECT_TRUE(bool(channel->drain()));
      EXPECT_EQ(channel->attention_statistics().abandoned, 54u);
    });
  }
}

TEST(Dropped, EveryBatchOfOneExpertRank) {
  for (const Combine mode : {Combine::reduced, Combine::per_expert}) {
    ChannelConfig config = usual_channel(4, 2, 32, 4);
    config.combine = mode;
    Scenario scenario = two_by_two(config, 4, 10);
    // Token 0 goes to rank 0 alone, token 1 to rank 1 alone, the others to both.
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      reference::Inputs inputs = standard_inputs(config, a, 4, step);
      inputs.ids = {0, 1, 2, 3, 0, 2, 3, 1};
      return inputs;
    };
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.serves() && rank.expert() == 0) {
        EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
      } else if (rank.serves()) {
        for (std::uint32_t s = 0; s < scenario.steps; ++s) {
          const Result<Batch> batch = channel->receive();
          ASSERT_TRUE(bool(batch)) << batch.status().text();
        }
        EXPECT_EQ(channel->expert_statistics().abandoned, 10u);
      } else {
        for (std::uint32_t s = 0; s < scenario.steps; ++s) {
          const ExpectedStep& want = expected.at(rank.attention(), s);
          AttentionStep step{scenario, channel->config(), want};
          Result<Ticket> ticket = step.dispatch(*channel);
          ASSERT_TRUE(bool(ticket)) << ticket.status().text();
          const MutableRows out = step.out();
          const Status status = channel->combine(*ticket, out);
          EXPECT_EQ(status.code(), Code::unavailable);
          EXPECT_EQ(status.scope(), Scope::operation);
          EXPECT_EQ(status.peer(), 3) << status.text();  // the world rank that did not serve
          EXPECT_EQ(std::memcmp(out.base, want.out.data(), 32 * 2), 0);  // token 0 is whole
          EXPECT_FALSE(bool(*ticket));
        }
      }
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

// --- ownership: I-61
// --------------------------------------------------------------------------------
TEST(I61, CombineFromAnotherThreadTwiceAndAfterTheHandleIsGone) {
  Scenario scenario = two_by_two(usual_channel(4, 2, 32, 4), 4, 20);
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> opened = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(opened)) << opened.status().text();
    Channel channel = *opened;
    if (rank.serves()) {
      EXPECT_TRUE(run_expert(scenario, expected, rank, channel));
      EXPECT_TRUE(bool(channel.drain()));
      return;
    }
    for (std::uint32_t s = 0; s < scenario.steps; ++s) {
      AttentionStep step{scenario, channel.config(), expected.at(rank.attention(), s)};
      Result<Ticket> ticket = step.dispatch(channel);
      ASSERT_TRUE(bool(ticket)) << ticket.status().text();
      std::thread waiter{[&] { EXPECT_TRUE(bool(channel.combine(*ticket, step.out()))); }};
      waiter.join();
      EXPECT_EQ(step.check(), "");
      const Status again = channel.combine(*ticket, step.out());
      EXPECT_EQ(again.code(), Code::invalid);
      EXPECT_EQ(step.check(), "") << "a refused combine wrote";
    }
    EXPECT_TRUE(bool(channel.drain()));
  });
}

TEST(I61, ArenaRowsAreFreeAfterInputFree) {
  for (const char* transport : {"inproc", "shm"}) {
    ChannelConfig config = usual_channel(4, 2, 32, 4);
    config.exchange = ExchangeKind::shared;
    config.depth = 3;
    Scenario scenario = two_by_two(config, 4, 100);
    scenario.ranks.transport = transport;
    scenario.form.arena = true;
    scenario.in_flight = 3;
    run(scenario);
    scenario.newest_first = true;
    run(scenario);
  }
}

TEST(I61, InputFreeComesByItself) {
  ChannelConfig config = usual_channel(4, 2, 32, 4);
  config.exchange = ExchangeKind::shared;
  Scenario scenario = two_by_two(config, 4, 10);
  scenario.form.arena = true;
  const Expected expected = expect(scenario);
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.serves()) {
      EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
    } else {
      for (std::uint32_t s = 0; s < scenario.steps; ++s) {
        AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), s)};
        Result<Ticket> ticket = step.dispatch(*channel);
        ASSERT_TRUE(bool(ticket)) << ticket.status().text();
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        bool free = false;
        while (!free && std::chrono::steady_clock::now() < end) {
          const Result<bool> now = channel->input_free(*ticket);
          ASSERT_TRUE(bool(now)) << now.status().text();
          free = *now;
          EXPECT_TRUE(bool(channel->progress()));
          std::this_thread::yield();
        }
        EXPECT_TRUE(free);
        EXPECT_TRUE(*channel->issued(*ticket));
        EXPECT_TRUE(bool(channel->combine(*ticket, step.out())));
        EXPECT_EQ(step.check(), "");
      }
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
}

}  // namespace
}  // namespace m2n::testing
