// What ids may say: I-08, I-11, I-32, I-35, I-36.
#include <gtest/gtest.h>

#include <limits>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

constexpr Combine both_modes[] = {Combine::reduced, Combine::per_expert};

Scenario routed(std::pair<std::uint32_t, std::uint32_t> ranks, const ChannelConfig& config,
                std::vector<std::int64_t> ids) {
  Scenario scenario;
  scenario.ranks.attention = ranks.first;
  scenario.ranks.experts = ranks.second;
  scenario.channel = config;
  scenario.steps = 2;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    const auto tokens = static_cast<std::uint32_t>(ids.size() / config.top_k);
    reference::Inputs inputs = standard_inputs(config, a, tokens, step);
    inputs.ids = ids;
    return inputs;
  };
  return scenario;
}

Placement replicated(std::uint32_t ranks, const std::vector<std::vector<Replica>>& replicas) {
  std::vector<ExpertParts> experts;
  for (const std::vector<Replica>& copies : replicas) experts.push_back({{copies}});
  Result<Placement> placement = Placement::make(ranks, experts);
  EXPECT_TRUE(bool(placement)) << placement.status().text();
  return placement ? *placement : Placement{};
}

TEST(I08, MinusOneSelectsNothing) {
  const std::vector<std::int64_t> ids = {-1, -1, -1, -1, 3, -1, 4,  -1, -1, 0, 7, -1,
                                         0,  1,  2,  3,  7, 6,  -1, -1, -1, 5, 5, -1};
  for (const float junk : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    for (const Combine mode : both_modes) {
      for (const DataType payload : {DataType::bf16, DataType::fp8_e4m3}) {
        ChannelConfig config = usual_channel(8, 4, 64, 6);
        config.combine = mode;
        config.payload = payload;
        Scenario scenario = routed({2, 2}, config, ids);
        const auto plain = scenario.inputs;
        scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
          reference::Inputs inputs = plain(a, step);
          for (std::size_t i = 0; i < ids.size(); ++i) {
            if (ids[i] == -1) inputs.weights[i] = junk;
          }
          return inputs;
        };
        run_everywhere(scenario);
        std::vector<std::vector<Replica>> map;
        for (std::uint32_t e = 0; e < 8; ++e) map.push_back({{e % 2, e / 2}});
        map[3].push_back({0, 9});
        map[7].push_back({0, 10});
        scenario.channel.placement = replicated(2, map);
        run(scenario);
      }
    }
  }
}

TEST(I11, AllTokensToOneRank) {
  for (const Layout layout : {Layout::rows, Layout::grouped, Layout::packed}) {
    std::vector<std::int64_t> ids;
    for (int t = 0; t < 256; ++t) ids.insert(ids.end(), {0, 1, 2, 3});
    ChannelConfig config = usual_channel(16, 4, 32, 256);
    config.layout = layout;
    run(routed({8, 4}, config, ids));
  }
}

TEST(I11, AllTokensToOneExpert) {
  ChannelConfig config = usual_channel(16, 1, 32, 256);
  config.layout = Layout::grouped;
  run(routed({8, 4}, config, std::vector<std::int64_t>(256, 0)));
  config.exchange = ExchangeKind::shared;
  run(routed({8, 4}, config, std::vector<std::int64_t>(256, 0)));
}

TEST(I32, SeveralExpertsOnOneRankAndDuplicates) {
  for (const Combine mode : both_modes) {
    for (const Layout layout : {Layout::rows, Layout::grouped, Layout::packed}) {
      ChannelConfig config = usual_channel(4, 4, 16, 4);
      config.combine = mode;
      config.layout = layout;
      Scenario scenario = routed({1, 2}, config, {0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 2, 2, 3, 0, 3, -1});
      scenario.finally = [](Rank& rank, Channel& channel) {
        if (rank.attends()) {
          const Statistics statistics = channel.attention_statistics();
          EXPECT_EQ(statistics.operations, 2u);
          EXPECT_EQ(statistics.tokens, 8u);
          EXPECT_EQ(statistics.rows, 12u);  // 2 + 1 + 1 + 2 per step: once per rank
          EXPECT_EQ(statistics.logical_bytes, 2u * 15 * 16 * 2);
          EXPECT_GE(statistics.wire_bytes, 12u * 16 * 2);
        } else {
          EXPECT_EQ(channel.expert_statistics().rows, 6u);
        }
      };
      run_everywhere(scenario);
    }
  }
}

TEST(I35, LargeTopK) {
  for (const std::uint32_t k : {1u, 8u, 9u, 16u, 32u, 33u, 64u, 128u}) {
    for (const Combine mode : both_modes) {
      ChannelConfig config = usual_channel(128, k, 8, 2);
      config.combine = mode;
      Scenario scenario;
      scenario.ranks.experts = 4;
      scenario.channel = config;
      scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
        return standard_inputs(config, a, 2, step);
      };
      run(scenario);
    }
  }
}

TEST(I35, TopKBeyondTheExpertsIsRefused) {
  for (const auto& [experts, k] : {std::pair{4u, 5u}, {256u, 129u}, {4u, 0u}}) {
    const Result<ChannelSizes> sizes = channel_sizes(usual_channel(experts, k, 8, 8), 1, 1);
    ASSERT_FALSE(sizes);
    EXPECT_EQ(sizes.code(), Code::invalid);
    EXPECT_NE(sizes.status().text().find("top_k"), std::string::npos) << sizes.status().text();
  }
}

Scenario on_map(std::uint32_t experts, std::uint32_t ranks, const Placement& placement) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = ranks;
  scenario.channel = usual_channel(experts, 2, 16, 32);
  scenario.channel.placement = placement;
  scenario.steps = 4;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, 32, step);
  };
  return scenario;
}

TEST(I36, EveryExpertTwice) {
  std::vector<std::vector<Replica>> map;
  for (std::uint32_t e = 0; e < 16; ++e) map.push_back({{e, 0}, {(e + 5) % 16, 1}});
  run(on_map(16, 16, replicated(16, map)));
}

TEST(I36, SevenSlotsOnThreeRanks) {
  std::vector<std::vector<Replica>> map;
  for (std::uint32_t e = 0; e < 6; ++e) map.push_back({{e % 3, e / 3}});
  map[4].push_back({0, 2});
  run_everywhere(on_map(6, 3, replicated(3, map)));
}

TEST(I36, TheSameExpertTwiceOnOneRank) {
  // Rank 0 holds [5, 5, 1].
  const Placement placement =
      replicated(2, {{{1, 0}}, {{0, 2}}, {{1, 1}}, {{1, 2}}, {{1, 3}}, {{0, 0}, {0, 1}}});
  for (const Combine mode : both_modes) {
    Scenario scenario = on_map(6, 2, placement);
    scenario.channel.combine = mode;
    run_everywhere(scenario);
  }
}

TEST(I36, BadMapsAreRefusedWhenMade) {
  const auto refused = [](const std::vector<ExpertParts>& experts) {
    const Result<Placement> placement = Placement::make(2, experts);
    EXPECT_EQ(placement.code(), Code::invalid);
    EXPECT_FALSE(placement.status().text().empty());
  };
  refused({ExpertParts{{{{0, 0}}}}, ExpertParts{{{}}}});        // a part without replicas
  refused({ExpertParts{{{{0, 0}}}}, ExpertParts{}});            // an expert without parts
  refused({ExpertParts{{{{2, 0}}}}});                           // rank out of range
  refused({ExpertParts{{{{0, 0}}}}, ExpertParts{{{{0, 0}}}}});  // a slot used twice
}

// Section 2: load per replica is even under `balanced`, also with one token per step; -1 is no
// load.
TEST(Replicas, BalancedOverManySteps) {
  const Placement placement = replicated(3, {{{0, 0}, {1, 0}, {2, 0}}, {{0, 1}}});
  ChannelConfig config = usual_channel(2, 1, 4, 1);
  config.placement = placement;
  config.presence = Presence::touched;
  Scenario scenario = routed({1, 3}, config, {0});
  scenario.steps = 300;
  scenario.in_flight = 2;
  scenario.finally = [](Rank& rank, Channel& channel) {
    if (!rank.serves()) return;
    EXPECT_EQ(channel.expert_statistics().rows, 100u);
  };
  run(scenario);
}

}  // namespace
}  // namespace m2n::testing
