// The parts of examples/moe_layer that its bit-for-bit comparison stands on: were they wrong, the
// example could agree with itself. Single thread.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "attention.hpp"
#include "expert.hpp"
#include "gemm.hpp"
#include "numbers.hpp"
#include "reference.hpp"
#include "table.hpp"
#include "timeline.hpp"

namespace moe {
namespace {

Options small_options() {
  Options options;
  options.expert_ranks = 2;
  options.hidden = 1;
  options.experts = 4;
  options.top_k = 4;
  return options;
}

// The exit code, or -1 if the options were accepted.
int parse(std::vector<std::string> words, Options& options) {
  words.insert(words.begin(), "moe_layer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_options(static_cast<int>(argv.size()), argv.data(), options).value_or(-1);
}

TEST(Options, AreRead) {
  Options options;
  EXPECT_EQ(parse({"--ranks", "3x5", "--combine", "reduced", "--layout", "grouped"}, options), -1);
  EXPECT_EQ(options.attention_ranks, 3u);
  EXPECT_EQ(options.expert_ranks, 5u);
  EXPECT_EQ(options.combine, m2n::Combine::reduced);
  EXPECT_EQ(options.layout, m2n::Layout::grouped);
}

TEST(Options, RefusalsNameOptionValueAndLimits) {
  struct Case {
    std::vector<std::string> words;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases{
      {{"--ranks", "2by2"}, {"--ranks", "2by2", "MxN"}},
      {{"--ranks", "0x2"}, {"--ranks", "0x2", "MxN"}},
      {{"--experts", "3", "--top-k", "4"}, {"--top-k", "4", "3"}},
      {{"--combine", "sideways"}, {"--combine", "sideways", "reduced"}},
      {{"--tokens", "0"}, {"--tokens", "0"}},
      {{"--no-such-option"}, {"--no-such-option"}},
  };
  for (const Case& entry : cases) {
    Options options;
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse(entry.words, options), 2);
    const std::string text = testing::internal::GetCapturedStderr();
    for (const std::string& word : entry.expected) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
    }
  }
}

TEST(Numbers, EveryBf16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto value = static_cast<Bf16>(bits);
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(value)))));
    } else {
      ASSERT_EQ(to_bf16(to_float(value)), value);
    }
  }
}

TEST(Numbers, RoundsHalfwayToEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80u);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82u);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81u);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7f80u);
}

TEST(Gemm, ProductIsRight) {
  Matrix a;
  a.reshape(3, 2, 2);
  for (std::uint32_t i = 0; i < 6; ++i) a.row(0)[i] = static_cast<float>(i);
  const std::array<float, 4> weights{1, 2, 3, 4};
  Matrix c;
  multiply(a, weights.data(), 2, c);
  const std::array<float, 6> expected{3, 4, 11, 16, 19, 28};
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_EQ(c.row(0)[i], expected[i]);
}

// Shapes for which OpenBLAS 0.3.21 does give other bits for other numbers of rows.
class GemmRows : public testing::TestWithParam<ProductShape> {};

TEST_P(GemmRows, DoNotDependOnTheirBatch) {
  use_one_blas_thread();
  const auto [inner, columns] = GetParam();
  const std::uint32_t tile = choose_tile_rows({{inner, columns}});
  std::vector<float> weights(std::size_t{inner} * columns);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(random_bits(5, i) % 1000) / 333.0F - 1.5F;
  }
  Matrix all;
  all.reshape(37, inner, tile);
  for (std::uint32_t i = 0; i < 37 * inner; ++i) {
    all.row(0)[i] = static_cast<float>(random_bits(6, i) % 1000) / 333.0F - 1.5F;
  }
  Matrix together;
  multiply(all, weights.data(), columns, together);
  for (std::uint32_t row = 0; row < 37; ++row) {
    Matrix one;
    one.reshape(1, inner, tile);
    std::copy_n(all.row(row), inner, one.row(0));
    Matrix alone;
    multiply(one, weights.data(), columns, alone);
    for (std::uint32_t c = 0; c < columns; ++c) {
      ASSERT_EQ(alone.row(0)[c], together.row(row)[c]) << "row " << row << " column " << c;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, GemmRows,
                         testing::Values(ProductShape{96, 1}, ProductShape{96, 3},
                                         ProductShape{96, 40}, ProductShape{500, 512}));

TEST(Gate, TakesTheLargestAndBreaksTiesByNumber) {
  const std::array<float, 5> logits{1.0F, 3.0F, 2.0F, 3.0F, -1.0F};
  std::array<std::int32_t, 3> ids{};
  std::array<float, 3> weights{};
  choose_experts(logits.data(), 5, 3, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::array<std::int32_t, 3>{1, 3, 2}));
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_NEAR(weights[2] / weights[0], std::exp(-1.0F), 1e-6F);
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1.0F, 1e-6F);
}

TEST(Expert, ComputesSwiGlu) {
  Options options;
  options.hidden = 1;
  options.intermediate = 1;
  options.tile_rows = 2;
  const ExpertWeights weights{{2.0F}, {3.0F}, {4.0F}};
  const Bf16 x = to_bf16(0.5F);
  Bf16 y = 0;
  Expert{options}.run(weights, {reinterpret_cast<const std::byte*>(&x), sizeof x, 1}, &y);
  const float silu = 1.0F / (1.0F + std::exp(-1.0F));
  EXPECT_EQ(y, to_bf16(silu * 1.5F * 4.0F));
}

// Numbers for which the two modes differ: 1 + 2^-8 is no bf16, so a partial sum loses it.
TEST(Reference, ReducedRoundsOncePerRankAndPerExpertOnce) {
  Options options = small_options();
  const std::array<std::int32_t, 4> ids{0, 2, 1, 3};  // ranks 0, 1, 0, 1
  const std::array<float, 4> weights{1.0F, 0.0F, 1.0F, 1.0F};
  const std::array<Bf16, 4> y{to_bf16(1.0F), to_bf16(77.0F), to_bf16(0.00390625F),
                              to_bf16(0.00390625F)};
  const Bf16 residual = to_bf16(0.0F);
  Bf16 out = 0;
  options.combine = m2n::Combine::per_expert;
  combine_token(options, {ids.data(), weights.data(), y.data(), &residual}, &out);
  EXPECT_EQ(to_float(out), 1.0078125F);
  options.combine = m2n::Combine::reduced;
  combine_token(options, {ids.data(), weights.data(), y.data(), &residual}, &out);
  EXPECT_EQ(to_float(out), 1.0F);
}

TEST(Reference, AddsTheResidualLast) {
  Options options = small_options();
  options.top_k = 1;
  options.combine = m2n::Combine::per_expert;
  const std::int32_t id = 0;
  const float weight = 0.5F;
  const Bf16 y = to_bf16(3.0F);
  const Bf16 residual = to_bf16(10.0F);
  Bf16 out = 0;
  combine_token(options, {&id, &weight, &y, &residual}, &out);
  EXPECT_EQ(to_float(out), 11.5F);
}

TEST(Compare, FindsOneFlippedBit) {
  Options options;
  options.hidden = 4;
  const std::vector<Bf16> expected(12, 7);
  std::vector<Bf16> actual = expected;
  EXPECT_EQ(compare(options, expected, actual.data()).tokens, 0u);
  actual[9] ^= 1u;
  const Difference difference = compare(options, expected, actual.data());
  EXPECT_EQ(difference.tokens, 1u);
  EXPECT_EQ(difference.first, 2u);
}

TEST(Timeline, TraceIsReadableAndTableAddsUp) {
  const std::array<Span, 2> attention{
      {{Work::gate, 0, 1, 5'000'000, 6'000'000}, {Work::combine, 0, 1, 8'000'000, 9'000'000}}};
  const std::array<Span, 1> expert{{{Work::experts, 2, 3, 4'000'000, 7'500'000}}};
  const std::array<RankTimeline, 2> ranks{{{"attention 0", attention}, {"expert 0", expert}}};
  const std::string path = testing::TempDir() + "m2n_trace_" +
                           std::to_string(static_cast<unsigned long>(now_ns())) + ".json";
  ASSERT_TRUE(write_trace(path, ranks));
  std::ifstream file{path};
  const nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  std::filesystem::remove(path);
  ASSERT_FALSE(document.is_discarded());
  const nlohmann::json& events = document.at("traceEvents");
  ASSERT_EQ(events.size(), 5u);  // two names, three slices
  const nlohmann::json& slice = events.at(4);
  EXPECT_EQ(slice.at("ph"), "X");
  EXPECT_EQ(slice.at("name"), "experts");
  EXPECT_EQ(slice.at("pid"), 1);
  EXPECT_EQ(slice.at("ts"), 0.0);
  EXPECT_EQ(slice.at("dur"), 3500.0);
  EXPECT_EQ(slice.at("args").at("micro_batch"), 3);

  const std::string table = time_table(ranks, 1);
  EXPECT_NE(table.find("2.0  50%"), std::string::npos) << table;  // other, of 4 ms
  EXPECT_NE(table.find("3.5 100%"), std::string::npos) << table;
  EXPECT_FALSE(write_trace("/nowhere/at/all.json", ranks));
}

}  // namespace
}  // namespace moe
