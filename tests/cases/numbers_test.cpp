// What the sums are, to the bit: I-10, I-33, I-34, and the reference's own conversions.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

constexpr Combine both_modes[] = {Combine::reduced, Combine::per_expert};
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::uint16_t rounded(float value, DataType type) {
  std::uint16_t bits = 0;
  reference::from_float(value, type, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

TEST(Reference, ConversionsAreExact) {
  for (const DataType type : {DataType::bf16, DataType::f16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      const float value = reference::to_float(reinterpret_cast<const std::byte*>(&pattern), type);
      if (std::isnan(value)) continue;
      ASSERT_EQ(rounded(value, type), pattern);
    }
  }
  EXPECT_EQ(rounded(1.0f + 0x1p-8f, DataType::bf16), 0x3F80);  // a tie, to even
  EXPECT_EQ(rounded(1.0f + 0x3p-8f, DataType::bf16), 0x3F82);  // a tie, to even
  EXPECT_EQ(rounded(1.0f + 0x1p-8f + 0x1p-20f, DataType::bf16), 0x3F81);
  EXPECT_EQ(rounded(0x1p-133f, DataType::bf16), 0x0001);  // smallest denormal
  EXPECT_EQ(rounded(0x1p-134f, DataType::bf16), 0x0000);  // a tie, to even
  EXPECT_EQ(rounded(0x1.8p-134f, DataType::bf16), 0x0001);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max(), DataType::bf16), 0x7F80);
  EXPECT_EQ(rounded(-0.0f, DataType::bf16), 0x8000);
  EXPECT_EQ(rounded(65504.0f, DataType::f16), 0x7BFF);
  EXPECT_EQ(rounded(65519.99f, DataType::f16), 0x7BFF);
  EXPECT_EQ(rounded(65520.0f, DataType::f16), 0x7C00);
  EXPECT_EQ(rounded(0x1p-24f, DataType::f16), 0x0001);
  EXPECT_EQ(rounded(0x1p-25f, DataType::f16), 0x0000);
  EXPECT_EQ(rounded(0x1.1p-25f, DataType::f16), 0x0001);
  EXPECT_EQ(rounded(-infinity, DataType::f16), 0xFC00);
}

using Values = std::function<float(std::uint32_t a, std::uint32_t t, std::uint32_t h)>;

Scenario with_values(const ChannelConfig& config, const Values& values, std::uint32_t tokens) {
  Scenario scenario;
  scenario.ranks.attention = 2;
  scenario.ranks.experts = 2;
  scenario.channel = config;
  scenario.steps = 2;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = standard_inputs(config, a, tokens, step);
    const std::size_t size = size_of(config.payload);
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t h = 0; h < config.hidden; ++h) {
        put_element(values(a, t, h), config.payload,
                    inputs.x.data() + (std::size_t{t} * config.hidden + h) * size);
      }
    }
    return inputs;
  };
  return scenario;
}

TEST(I10, NanStaysInItsToken) {
  const auto values = [](std::uint32_t a, std::uint32_t t, std::uint32_t h) {
    constexpr std::array odd = {infinity, -0.0f, 0x1p-130f, -0x1p-133f, -infinity};
    if (a == 0 && t == 2) return not_a_number;
    if (a == 0 && t == 3) return odd[h % odd.size()];
    return static_cast<float>(h % 5);
  };
  for (const Combine mode : both_modes) {
    for (const Layout layout : {Layout::rows, Layout::grouped, Layout::packed}) {
      ChannelConfig config = usual_channel(4, 2, 64, 5);
      config.combine = mode;
      config.layout = layout;
      config.packed_alignment = 8;
      run_everywhere(with_values(config, values, 5));
    }
  }
}

TEST(I10, BitPatternsArriveUnchanged) {
  ChannelConfig config = usual_channel(4, 2, 64, 5);
  Scenario scenario = with_values(
      config, [](auto, auto, auto) { return 0.0f; }, 5);
  const auto plain = scenario.inputs;
  scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
    reference::Inputs inputs = plain(a, step);
    Random random{a + 1};  // signalling NaN and all, compared as bytes by check_batch
    for (std::byte& byte : inputs.x) byte = static_cast<std::byte>(random.below(256));
    return inputs;
  };
  run_everywhere(scenario);
}

TEST(I10, WeightZeroContributesNothing) {
  for (const float value : {3.0f, not_a_number, infinity}) {
    for (const float zero : {0.0f, -0.0f}) {
      for (const Combine mode : both_modes) {
        ChannelConfig config = usual_channel(4, 2, 64, 5);
        config.combine = mode;
        Scenario scenario = with_values(
            config,
            [=](std::uint32_t, std::uint32_t t, std::uint32_t) { return t == 1 ? value : 2.0f; },
            5);
        const auto plain = scenario.inputs;
        scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
          reference::Inputs inputs = plain(a, step);
          inputs.weights[2] = inputs.weights[3] = zero;  // token 1
          inputs.weights[4] = zero;                      // token 2, first of two
          return inputs;
        };
        scenario.finally = [](Rank& rank, Channel& channel) {
          if (!rank.attends()) return;
          std::uint64_t counted = 0;
          for (const std::uint64_t rows : channel.attention_statistics().expert_rows)
            counted += rows;
          EXPECT_EQ(counted, 2u * 5 * 2);  // weight 0 travels and is counted
        };
        run(scenario);
      }
    }
  }
}

TEST(I33, WeightsAreAppliedOnceByTheSideThatWasChosen) {
  for (const Weights weights : {Weights::library, Weights::caller}) {
    for (const Combine mode : both_modes) {
      ChannelConfig config = usual_channel(4, 2, 32, 6);
      config.weights = weights;
      config.combine = mode;
      Scenario scenario = with_values(
          config,
          [](std::uint32_t a, std::uint32_t t, std::uint32_t h) {
            return payload_value(a, t, h, 0);
          },
          6);
      const auto plain = scenario.inputs;
      scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
        reference::Inputs inputs = plain(a, step);
        const float list[] = {0.5f, 0.25f, 3.0f, -1.0f, 0.75f, 0.125f, 1e-3f, 7.0f};
        for (std::size_t i = 0; i < inputs.weights.size(); ++i) inputs.weights[i] = list[i % 8];
        return inputs;
      };
      run_everywhere(scenario);  // check_batch compares the weights at the expert side
    }
  }
}

// y of expert e is e == 0 ? 256 : 1, or 2^e.
reference::Expert constant_expert(const ChannelConfig& config, bool powers) {
  return [=](const std::byte*, std::uint32_t e, std::uint32_t, std::byte* y) {
    const float value = powers ? std::ldexp(1.0f, static_cast<int>(e)) : e == 0 ? 256.0f : 1.0f;
    for (std::uint32_t h = 0; h < config.hidden; ++h) {
      reference::from_float(value, config.wire, y + h * size_of(config.wire));
    }
  };
}

TEST(I34, AccumulatesInSinglePrecisionInOneOrder) {
  for (const bool powers : {false, true}) {
    for (const Combine mode : both_modes) {
      ChannelConfig config = usual_channel(8, 8, 16, 4);
      config.combine = mode;
      Scenario scenario = with_values(
          config, [](auto, auto, auto) { return 1.0f; }, 4);
      scenario.ranks.experts = 8;
      scenario.expert = constant_expert(config, powers);
      const auto plain = scenario.inputs;
      scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
        reference::Inputs inputs = plain(a, step);
        for (std::size_t i = 0; i < inputs.ids.size(); ++i) inputs.ids[i] = static_cast<int>(i % 8);
        std::fill(inputs.weights.begin(), inputs.weights.end(), 1.0f);
        return inputs;
      };
      Scenario expected = scenario;
      expected.channel.placement = Placement::block(8, 8);
      const std::vector<std::byte> out = expect(expected).at(0, 0).out;
      EXPECT_EQ(reference::to_float(out.data(), DataType::bf16), powers ? 255.0f : 264.0f);
      run_everywhere(scenario);
    }
  }
}

TEST(Numbers, EveryPairOfTypesWithAddend) {
  constexpr DataType types[] = {DataType::bf16, DataType::f16, DataType::f32};
  for (const DataType wire : types) {
    for (const DataType output : types) {
      for (const Combine mode : both_modes) {
        ChannelConfig config = usual_channel(6, 3, 37, 5);
        config.payload = DataType::f32;
        config.wire = wire;
        config.output = output;
        config.combine = mode;
        Random random{11};
        std::vector<float> noise(1024);
        for (float& value : noise) {
          value = std::ldexp(static_cast<float>(random.between(1, 1 << 20)) - 0x1p19f,
                             static_cast<int>(random.below(30)) - 40);
        }
        Scenario scenario = with_values(
            config,
            [=](std::uint32_t a, std::uint32_t t, std::uint32_t h) {
              return noise[(a * 331 + t * 37 + h) % noise.size()];
            },
            5);
        scenario.form.add_pad_bytes = 8;
        const auto plain = scenario.inputs;
        scenario.inputs = [=](std::uint32_t a, std::uint32_t step) {
          reference::Inputs inputs = plain(a, step);
          for (std::size_t i = 0; i < inputs.weights.size(); ++i) {
            inputs.weights[i] = noise[(i + a) % noise.size()] * 64;
          }
          inputs.addend.resize(std::size_t{5} * 37 * size_of(output));
          for (std::size_t i = 0; i < 5 * 37; ++i) {
            reference::from_float(noise[(i * 3 + a) % noise.size()], output,
                                  inputs.addend.data() + i * size_of(output));
          }
          return inputs;
        };
        run(scenario);
      }
    }
  }
}

}  // namespace
}  // namespace m2n::testing
