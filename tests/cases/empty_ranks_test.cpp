// Ranks and pairs with nothing to say: I-01, I-02, and token counts around every boundary.
#include <gtest/gtest.h>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

Scenario with_tokens(std::vector<std::uint32_t> tokens) {
  Scenario scenario;
  scenario.ranks.attention = 4;
  scenario.ranks.experts = 2;
  scenario.channel = usual_channel(8, 2, 64, 8);
  scenario.steps = 3;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, tokens[a], step);
  };
  return scenario;
}

TEST(I01, SomeRanksHaveNoTokens) {
  run_everywhere(with_tokens({0, 5, 0, 3}));
}

TEST(I01, NoRankHasTokens) {
  run_everywhere(with_tokens({0, 0, 0, 0}));
}

TEST(I01, NoRankHasTokensInGroupedLayouts) {
  for (const Layout layout : {Layout::grouped, Layout::packed}) {
    Scenario scenario = with_tokens({0, 0, 0, 0});
    scenario.channel.layout = layout;
    run_everywhere(scenario);
  }
}

TEST(I01, AnExpertRankReceivesNothing) {
  Scenario scenario = with_tokens({3, 3, 3, 3});
  const auto standard = scenario.inputs;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = standard(a, step);
    for (std::int64_t& id : inputs.ids) id %= 4;
    return inputs;
  };
  run_everywhere(scenario);
}

TEST(I01, TokenCountsChangeFromStepToStep) {
  Scenario scenario = with_tokens({0, 0, 0, 0});
  scenario.steps = 200;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    constexpr std::uint32_t counts[] = {0, 1, 7};
    Random random{1000 * step + a};
    return standard_inputs(config, a, random.pick(counts), step);
  };
  run_everywhere(scenario);
  scenario.channel.presence = Presence::touched;
  run_everywhere(scenario);
}

// Token r goes to expert r alone: most pairs are empty.
Scenario diagonal(std::uint32_t attention, std::uint32_t experts) {
  Scenario scenario;
  scenario.ranks.attention = attention;
  scenario.ranks.experts = experts;
  scenario.channel = usual_channel(experts, 1, 8, 1);
  scenario.steps = 5;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = standard_inputs(config, a, 1, step);
    inputs.ids[0] = a;
    return inputs;
  };
  return scenario;
}

TEST(I02, MostPairsAreEmpty) {
  for (const ExchangeKind exchange : {ExchangeKind::push, ExchangeKind::shared}) {
    for (const Presence presence : {Presence::every, Presence::touched}) {
      Scenario scenario = diagonal(3, 5);
      scenario.channel.exchange = exchange;
      scenario.channel.presence = presence;
      run_everywhere(scenario);
    }
  }
}

TEST(I02, SixtyFourRanks) {
  Scenario scenario = diagonal(32, 32);
  scenario.steps = 3;
  run(scenario);
}

// Section 2: token counts around every boundary, ragged counts.
TEST(TokenCounts, EveryCountUpToTheMaximum) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = 2;
  scenario.channel = usual_channel(4, 2, 40, 67);
  scenario.steps = 68;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, a == 0 ? step : 67 - step, step);
  };
  run_everywhere(scenario);
}

TEST(TokenCounts, AroundPowersOfTwo) {
  for (const std::uint32_t boundary : {64u, 128u, 256u, 1024u}) {
    Scenario scenario;
    scenario.ranks.attention = 2;
    scenario.ranks.experts = 2;
    scenario.channel = usual_channel(4, 2, 33, boundary + 1);
    scenario.steps = 6;
    const ChannelConfig config = scenario.channel;
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      return standard_inputs(config, a, boundary - 1 + (step + a) % 3, step);
    };
    run(scenario);
  }
}

// I-07: paths are never chosen from one rank's own numbers.
TEST(I07, UnequalCountsAroundThresholds) {
  Random random{7};
  for (std::uint32_t mix = 0; mix < 25; ++mix) {
    constexpr std::uint32_t thresholds[] = {1, 16, 63, 64, 256, 999};
    Scenario scenario;
    scenario.ranks.attention = 4;
    scenario.ranks.experts = 2;
    scenario.channel = usual_channel(8, 2, 128, 1000);
    std::vector<std::uint32_t> tokens;
    for (int a = 0; a < 4; ++a) tokens.push_back(random.pick(thresholds) + random.below(3) - 1);
    if (mix == 0) tokens = {1, 1000, 0, 63};
    const ChannelConfig config = scenario.channel;
    scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
      return standard_inputs(config, a, tokens[a], step);
    };
    run(scenario);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace m2n::testing
