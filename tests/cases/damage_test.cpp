// Slots whose content lies, and counters near their wrap: I-02 (fault), I-47, section 2.
#include <gtest/gtest.h>

#include <atomic>

#include "collectives/slot.hpp"
#include "tests/cases/hook_scope.hpp"
#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::SlotHeader;
using Damage = std::function<void(SlotHeader&)>;

Scenario two_by_two(std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = 2;
  scenario.channel = usual_channel(4, 2, 32, 4);
  scenario.channel.placement = Placement::block(4, 2);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, 4, step);
  };
  return scenario;
}

// Round 1 from attention rank 1 to expert rank 0 is damaged; everything else must stay exact, and
// the two ends of that pair must both be told.
void run_damaged(const Damage& damage, const char* told) {
  const Scenario scenario = two_by_two(4);
  const Expected expected = expect(scenario);
  const HookScope scope{[&](const HookEvent& event) {
    if (event.point != HookPoint::header_written) return;
    if (event.world_rank != 1 || event.peer != 0 || event.round != 1) return;
    damage(*reinterpret_cast<SlotHeader*>(event.slot));
  }};
  std::atomic<int> told_experts{0};
  std::atomic<int> told_attention{0};
  run_ranks(scenario.ranks, [&](Rank& rank) {
    Result<Channel> channel = rank.group.open(scenario.channel);
    ASSERT_TRUE(bool(channel)) << channel.status().text();
    for (std::uint32_t s = 0; s < scenario.steps; ++s) {
      rank.at("step", s);
      if (rank.attends()) {
        AttentionStep step{scenario, channel->config(), expected.at(rank.attention(), s)};
        Result<Ticket> ticket = step.dispatch(*channel);
        ASSERT_TRUE(bool(ticket)) << ticket.status().text();
        const Status status = channel->combine(*ticket, step.out());
        if (status) {
          EXPECT_EQ(step.check(), "") << "step " << s;
          continue;
        }
        EXPECT_EQ(s, 1u);
        EXPECT_EQ(status.code(), Code::unavailable) << status.text();
        EXPECT_EQ(status.peer(), 2) << status.text();
        ++told_attention;
        continue;
      }
      const ExpertSide side{&scenario, &channel->config(), &expected, rank.expert(),
                            identities(scenario.channel.placement, rank.expert())};
      Result<Batch> batch = channel->receive();
      if (!batch) {
        EXPECT_EQ(batch.code(), Code::invalid) << batch.status().text();
        EXPECT_EQ(s, 1u);
        for (const char* part : {"rank 1", told, "operation 1"}) {
          EXPECT_NE(batch.status().text().find(part), std::string::npos)
              << "no " << part << ": " << batch.status().text();
        }
        ++told_experts;
        continue;
      }
      if (s != 1 || rank.expert() != 0) {
        EXPECT_EQ(check_batch(side, *channel, *batch), "") << "step " << s;
      }
      EXPECT_TRUE(bool(answer(side, *batch, *channel)));
    }
    rank.at("drain");
    EXPECT_TRUE(bool(channel->drain()));
  });
  EXPECT_EQ(told_experts.load(), 1);
  EXPECT_GE(told_attention.load(), 1);
}

TEST(I02, TheHeaderSaysRowsAndTheListSaysNone) {
  run_damaged([](SlotHeader& header) { header.rows = 4, header.entries = 0; }, "4");
}

TEST(I47, MoreRowsThanTheSlotHolds) {
  run_damaged([](SlotHeader& header) { header.rows = 5; }, "5");
  run_damaged([](SlotHeader& header) { header.rows = 0xffff'ffff; }, "4294967295");
}

TEST(I47, ABodyOutsideTheSlot) {
  run_damaged([](SlotHeader& header) { header.body_offset = ~std::uint64_t{63}; }, "do not fit");
  run_damaged([](SlotHeader& header) { header.body_offset += 1; }, "do not fit");
}

TEST(I47, AnEntryOfAnExpertThatIsNotHere) {
  run_damaged(
      [](SlotHeader& header) {
        std::byte* body = reinterpret_cast<std::byte*>(&header) + header.body_offset;
        auto* entry = reinterpret_cast<Entry*>(body + (header.rows + 1) * sizeof(RowInfo));
        entry->expert_bits = 77;
      },
      "77");
}

TEST(I47, ATokenThatIsNotThere) {
  run_damaged(
      [](SlotHeader& header) {
        auto* row =
            reinterpret_cast<RowInfo*>(reinterpret_cast<std::byte*>(&header) + header.body_offset);
        row->first_entry = 0x7000'0000;
      },
      "row");
}

// Generations are 64-bit words, of which `filled` keeps 32 bits: rounds around 2^32 generations.
TEST(Counters, RoundsNearTheWrap) {
  for (const std::uint32_t depth : {1u, 2u, 4u}) {
    for (const char* transport : {"inproc", "shm"}) {
      for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
        collectives::test_first_round = ((std::uint64_t{1} << 32) - 6) * depth;
        Scenario scenario = two_by_two(12 * depth);
        scenario.channel.depth = depth;
        scenario.channel.exchange = exchange;
        scenario.in_flight = depth;
        scenario.ranks.transport = transport;
        run(scenario);
        scenario.channel.presence = Presence::touched;
        run(scenario);
      }
    }
  }
  collectives::test_first_round = 0;
}

}  // namespace
}  // namespace m2n::testing
