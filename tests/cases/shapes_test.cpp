// Sizes, counts of ranks, types and strides: I-26, I-30, I-57 (what is supported), I-59.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

void use_standard_inputs(Scenario& scenario, std::uint32_t tokens) {
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, tokens, step);
  };
}

struct Types {
  DataType payload;
  DataType wire;
  std::vector<std::uint32_t> extra;
};

TEST(I26, AnyHiddenSizeAndType) {
  const std::vector<Types> all = {{DataType::bf16, DataType::bf16, {}},
                                  {DataType::f16, DataType::f16, {}},
                                  {DataType::f32, DataType::f32, {}},
                                  {DataType::fp8_e4m3, DataType::bf16, {12}},
                                  {DataType::i8, DataType::f16, {}}};
  for (const std::uint32_t h : {1, 2, 3, 7, 63, 64, 65, 127, 129, 513, 2880, 2881, 7168}) {
    for (const Types& types : all) {
      SCOPED_TRACE("H " + std::to_string(h) + " " + name(types.payload));
      Scenario scenario;
      scenario.ranks.attention = 2;
      scenario.ranks.experts = 2;
      scenario.channel = usual_channel(4, 2, h, 3);
      scenario.channel.payload = types.payload;
      scenario.channel.wire = scenario.channel.output = types.wire;
      scenario.channel.extra_row_bytes = types.extra;
      scenario.form.x_pad_bytes = 5 * size_of(types.payload);
      scenario.form.out_pad_bytes = 5 * size_of(types.wire);
      scenario.form.y_pad_bytes = 3 * size_of(types.wire);
      scenario.steps = 2;
      use_standard_inputs(scenario, 3);
      h % 2 == 0 ? run(scenario) : run_everywhere(scenario);
      if (HasFailure()) return;
    }
  }
}

TEST(I30, EveryRatioOfRanks) {
  for (const std::uint32_t m : {1u, 2u, 3u, 5u, 8u}) {
    for (const std::uint32_t n : {1u, 2u, 3u, 5u, 7u}) {
      for (const std::uint32_t experts : {2 * n, 2 * n + 1}) {
        for (const Layout layout : {Layout::rows, Layout::grouped, Layout::packed}) {
          SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n));
          Scenario scenario;
          scenario.ranks.attention = m;
          scenario.ranks.experts = n;
          scenario.channel = usual_channel(experts, std::min(3u, experts), 32, 9);
          scenario.channel.layout = layout;
          scenario.channel.packed_alignment = 4;
          scenario.steps = 2;
          // The roles take turns in world order, from the end.
          for (std::uint32_t i = 0; i < m + n; ++i) scenario.ranks.world.push_back(m + n - 1 - i);
          use_standard_inputs(scenario, 9);
          run(scenario);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(I30, RolesInterleavedInWorldOrder) {
  Scenario scenario;
  scenario.ranks.attention = 3;
  scenario.ranks.experts = 2;
  scenario.ranks.world = {0, 2, 4, 1, 3};
  scenario.channel = usual_channel(5, 2, 32, 9);
  scenario.steps = 5;
  use_standard_inputs(scenario, 9);
  run_everywhere(scenario);
}

TEST(I30, EveryRankHasBothRoles) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
    for (const bool serve : {false, true}) {
      for (const Layout layout : {Layout::rows, Layout::packed}) {
        SCOPED_TRACE(std::to_string(ranks) + (serve ? " serve" : " by hand"));
        Scenario scenario;
        scenario.ranks.attention = scenario.ranks.experts = ranks;
        scenario.ranks.both = true;
        scenario.use_serve = serve;
        scenario.channel = usual_channel(2 * ranks + 1, 3, 32, 9);
        scenario.channel.layout = layout;
        scenario.steps = 10;
        use_standard_inputs(scenario, 9);
        run_everywhere(scenario);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(I57, IdsWeightsAndRowsOfAnyStride) {
  for (const bool ids64 : {false, true}) {
    for (const bool bf16_weights : {false, true}) {
      for (const std::size_t shift : {0, 2}) {
        Scenario scenario;
        scenario.ranks.attention = 2;
        scenario.ranks.experts = 2;
        scenario.channel = usual_channel(8, 3, 50, 7);
        scenario.form.ids64 = ids64;
        scenario.form.bf16_weights = bf16_weights;
        scenario.form.id_pad = 3;
        scenario.form.weight_pad = 1;
        scenario.form.x_pad_bytes = 14;
        scenario.form.x_shift_bytes = shift;
        scenario.form.add_pad_bytes = 6;
        scenario.form.y_index = true;
        scenario.steps = 3;
        use_standard_inputs(scenario, 7);
        run_everywhere(scenario);
      }
    }
  }
}

TEST(I57, NoWeightsMeansOne) {
  Scenario scenario;
  scenario.ranks.experts = 2;
  scenario.channel = usual_channel(8, 3, 50, 7);
  scenario.form.null_weights = true;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = standard_inputs(config, a, 7, step);
    std::fill(inputs.weights.begin(), inputs.weights.end(), 1.0f);
    return inputs;
  };
  run(scenario);
}

// fp8 rows with f32 block scales: 3 blocks of 128 for H = 320; also a packed fp4 row of odd H.
TEST(I59, ScalesTravelUntouched) {
  for (const bool arena : {false, true}) {
    for (const Layout layout : {Layout::rows, Layout::grouped}) {
      Scenario scenario;
      scenario.ranks.attention = 2;
      scenario.ranks.experts = 2;
      scenario.channel = usual_channel(4, 2, 320, 3);
      scenario.channel.payload = DataType::fp8_e4m3;
      scenario.channel.extra_row_bytes = {12, 161};
      scenario.channel.layout = layout;
      scenario.form.arena = arena;
      if (arena) scenario.channel.exchange = ExchangeKind::shared;
      scenario.steps = 3;
      const ChannelConfig config = scenario.channel;
      scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
        reference::Inputs inputs = standard_inputs(config, a, 3, step);
        for (std::uint32_t i = 0; i < 9; ++i) {  // unique powers of two, one zero
          const float scale = i == 4 ? 0.0f : std::ldexp(1.0f, static_cast<int>(i + a) - 6);
          std::memcpy(inputs.extra[0].data() + 4 * std::size_t{i}, &scale, 4);
        }
        return inputs;
      };
      run_everywhere(scenario);
    }
  }
}

TEST(I59, AnFp8SumIsRefused) {
  for (const DataType type : {DataType::fp8_e4m3, DataType::fp8_e5m2, DataType::i8}) {
    ChannelConfig config = usual_channel(4, 2, 320, 3);
    config.wire = type;
    EXPECT_EQ(channel_sizes(config, 1, 1).code(), Code::invalid);
    config.wire = DataType::bf16;
    config.output = type;
    EXPECT_EQ(channel_sizes(config, 1, 1).code(), Code::invalid);
  }
}

TEST(TokenShards, EachRankSendsItsShare) {
  for (const Combine mode : {Combine::reduced, Combine::per_expert}) {
    for (const std::uint32_t tokens : {0u, 1u, 2u, 3u, 7u, 16u}) {
      Scenario scenario;
      scenario.ranks.attention = 3;
      scenario.ranks.experts = 2;
      scenario.channel = usual_channel(6, 2, 24, 16);
      scenario.channel.combine = mode;
      scenario.local = [](ChannelConfig& config, const GroupConfig& group) {
        if (group.attention_rank < 0) return;
        config.shard_index = static_cast<std::uint32_t>(group.attention_rank);
        config.shard_count = 3;
      };
      scenario.steps = 3;
      const ChannelConfig config = scenario.channel;
      scenario.inputs = [=](std::uint32_t, std::uint32_t step) {  // all hold the same tokens
        return standard_inputs(config, 0, tokens, step);
      };
      run_everywhere(scenario);
    }
  }
}

}  // namespace
}  // namespace m2n::testing
