// Batches larger than one operation, several channels at one expert rank, steps that do not agree,
// and batches that are held. Section 2 of the cases: micro-batch splits, handles that interleave.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

// Each rank has its own number of tokens; all issue the same number of operations.
TEST(Pieces, UnequalBatchesOfAnySize) {
  const std::vector<std::uint64_t> totals[] = {{0, 1, 17}, {0, 0, 0}, {4, 5, 8}, {1, 1, 1}};
  for (const std::vector<std::uint64_t>& total : totals) {
    const std::uint64_t most = *std::max_element(total.begin(), total.end());
    const auto count = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (most + 3) / 4));
    Scenario scenario;
    scenario.ranks.attention = 3;
    scenario.ranks.experts = 2;
    scenario.channel = usual_channel(4, 2, 16, 4);
    scenario.channel.placement = Placement::block(4, 2);
    scenario.steps = count;
    const ChannelConfig config = scenario.channel;
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      return standard_inputs(config, a, piece(total[a], step, count).count, step);
    };
    const Expected expected = expect(scenario);
    run_ranks(scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.attends()) {
        for (int again = 0; again < 3; ++again) {
          const Result<std::uint32_t> agreed = channel->agree_pieces(total[rank.attention()]);
          ASSERT_TRUE(bool(agreed)) << agreed.status().text();
          EXPECT_EQ(std::max(1u, *agreed), count);
        }
        EXPECT_TRUE(run_attention(scenario, expected, rank, *channel));
      } else {
        EXPECT_TRUE(run_expert(scenario, expected, rank, *channel));
      }
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

TEST(Pieces, CoverTheBatchExactly) {
  for (std::uint64_t tokens = 0; tokens < 40; ++tokens) {
    for (std::uint32_t count = 1; count < 12; ++count) {
      std::uint64_t next = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        const Piece one = piece(tokens, i, count);
        EXPECT_EQ(one.first, next);
        EXPECT_LE(one.count, (tokens + count - 1) / count);
        next += one.count;
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

// The ends of the number range: floor(tokens * i / n), in wide arithmetic.
TEST(Pieces, OfHugeBatches) {
  __extension__ using Wide = unsigned __int128;
  constexpr std::uint64_t most = ~std::uint64_t{0};
  Random random{6};
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t tokens =
        i % 7 == 0 ? most - random.below(3) : random.next() >> random.below(60);
    const auto count = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, random.next() >> 32));
    const auto index = static_cast<std::uint32_t>(random.next() % count);
    const Wide first = Wide{tokens} * index / count;
    const Wide next = Wide{tokens} * (std::uint64_t{index} + 1) / count;
    const Piece one = piece(tokens, index, count);
    ASSERT_TRUE(one.first == first) << tokens << ' ' << index << ' ' << count;
    ASSERT_TRUE(one.count == std::min<Wide>(next - first, 0xffff'ffffu));
  }
  static_assert(piece(most, 0, 1).count == 0xffff'ffffu, "which dispatch refuses");
  static_assert(piece(most / 2, ~0u - 1, ~0u).first + piece(most / 2, ~0u - 1, ~0u).count ==
                most / 2);
}

TEST(Pieces, BehindTheLastIsNothing) {
  static_assert(piece(7, 0, 0).first == 7 && piece(7, 0, 0).count == 0);
  static_assert(piece(7, 3, 3).count == 0 && piece(7, ~0u, 3).count == 0);
}

// An expert rank that is late at the start is waited for as long as the start may take.
TEST(Pieces, TheFirstAgreementHasTheStartDeadline) {
  Scenario scenario;
  scenario.channel = usual_channel(2, 1, 16, 4);
  scenario.channel.placement = Placement::block(2, 1);
  scenario.ranks.adjust = [](GroupConfig& config) {
    config.start_timeout = std::chrono::milliseconds{10'000};
    config.step_timeout = std::chrono::milliseconds{20};
  };
  std::atomic<bool> agreed{false};
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    if (rank.attends()) {
      const Result<std::uint32_t> pieces = channel->agree_pieces(9);
      EXPECT_TRUE(bool(pieces)) << pieces.status().text();
      agreed = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds{80});
      while (!agreed.load()) EXPECT_TRUE(bool(channel->progress()));
    }
  });
}

struct Two {
  Scenario scenario;
  Expected expected;
};

Two two_by_two(std::uint32_t steps, std::uint32_t depth) {
  Two two;
  two.scenario.ranks.attention = 2;
  two.scenario.ranks.experts = 2;
  two.scenario.channel = usual_channel(4, 2, 32, 8);
  two.scenario.channel.placement = Placement::block(4, 2);
  two.scenario.channel.depth = depth;
  two.scenario.steps = steps;
  two.scenario.in_flight = depth;
  const ChannelConfig config = two.scenario.channel;
  two.scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, (a + step) % 9, step);
  };
  two.expected = expect(two.scenario);
  return two;
}

ExpertSide side_of(const Two& two, const Rank& rank, const Channel& channel) {
  return {&two.scenario, &channel.config(), &two.expected, rank.expert(),
          identities(two.scenario.channel.placement, rank.expert())};
}

// One expert loop over two channels, whichever has something.
TEST(ReceiveAny, TakesFromEitherChannel) {
  for (const char* transport : {"inproc", "shm"}) {
    Two two = two_by_two(100, 2);
    two.scenario.ranks.transport = transport;
    two.scenario.ranks.adjust = [](GroupConfig& config) { config.workers = 2; };
    run_ranks(two.scenario.ranks, [&](Rank& rank) {
      std::vector<Channel> channels;
      for (std::uint32_t i = 0; i < 2; ++i) {
        ChannelConfig config = two.scenario.channel;
        config.name = i == 0 ? "a" : "b";
        Result<Channel> channel = rank.group.open(config, {i, 0, {}});
        ASSERT_TRUE(bool(channel)) << channel.status().text();
        channels.push_back(*channel);
      }
      if (rank.attends()) {
        std::thread other{[&] { run_attention(two.scenario, two.expected, rank, channels[1]); }};
        run_attention(two.scenario, two.expected, rank, channels[0]);
        other.join();
      } else {
        std::uint32_t got[2] = {0, 0};
        const ExpertSide side = side_of(two, rank, channels[0]);
        for (std::uint32_t i = 0; i < 2 * two.scenario.steps; ++i) {
          Result<AnyBatch> any = receive_any(channels);
          ASSERT_TRUE(bool(any)) << any.status().text();
          ++got[any->index];
          EXPECT_EQ(check_batch(side, channels[any->index], any->batch), "");
          EXPECT_TRUE(bool(answer(side, any->batch, channels[any->index])));
        }
        EXPECT_EQ(got[0], got[1]);
      }
      for (Channel& channel : channels) EXPECT_TRUE(bool(channel.drain()));
    });
  }
}

// An expert rank holds as many batches as there may be, and answers the newest first.
TEST(Held, BatchesAnsweredInReverse) {
  for (const char* transport : {"inproc", "shm"}) {
    Two two = two_by_two(30, 3);
    two.scenario.newest_first = true;
    two.scenario.ranks.transport = transport;
    run_ranks(two.scenario.ranks, [&](Rank& rank) {
      Result<Channel> channel = rank.group.open(two.scenario.channel);
      ASSERT_TRUE(bool(channel)) << channel.status().text();
      if (rank.attends()) {
        EXPECT_TRUE(run_attention(two.scenario, two.expected, rank, *channel));
      } else {
        const ExpertSide side = side_of(two, rank, *channel);
        for (std::uint32_t i = 0; i < two.scenario.steps; i += 3) {
          std::vector<Batch> held;
          for (int j = 0; j < 3; ++j) {
            Result<Batch> batch = channel->receive();
            ASSERT_TRUE(bool(batch)) << batch.status().text();
            held.push_back(std::move(*batch));
          }
          for (; !held.empty(); held.pop_back()) {
            EXPECT_EQ(check_batch(side, *channel, held.back()), "");
            EXPECT_TRUE(bool(answer(side, held.back(), *channel)));
          }
        }
      }
      EXPECT_TRUE(bool(channel->drain()));
    });
  }
}

// In lockstep all sources must be at the same step; who is not is named, and the next step works.
TEST(Lockstep, StepsThatDoNotAgree) {
  Two two = two_by_two(3, 2);
  two.scenario.in_flight = 1;
  two.scenario.inputs = [=, inner = two.scenario.inputs](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = inner(a, step);
    if (a == 1 && step == 1) inputs.micro_batch = 77;
    return inputs;
  };
  two.expected = expect(two.scenario);
  run_ranks(two.scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(two.scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    for (std::uint32_t s = 0; s < 3; ++s) {
      if (rank.attends()) {
        AttentionStep step{two.scenario, channel->config(), two.expected.at(rank.attention(), s)};
        Result<Ticket> ticket = step.dispatch(*channel);
        ASSERT_TRUE(bool(ticket)) << ticket.status().text();
        const Status status = channel->combine(*ticket, step.out());
        EXPECT_EQ(status.code(), s == 1 ? Code::unavailable : Code::ok) << status.text();
        EXPECT_EQ(status.code() == Code::ok ? step.check() : "", "");
        continue;
      }
      Result<Batch> batch = channel->receive();
      EXPECT_EQ(batch.code(), s == 1 ? Code::invalid : Code::ok);
      if (!batch) {
        for (const char* part : {"micro-batch 77", "micro-batch 1", "rank 0", "rank 1"}) {
          EXPECT_NE(batch.status().text().find(part), std::string::npos) << batch.status().text();
        }
        continue;
      }
      EXPECT_TRUE(bool(answer(side_of(two, rank, *channel), *batch, *channel)));
    }
    EXPECT_TRUE(bool(channel->drain()));
  });
}

}  // namespace
}  // namespace m2n::testing
