// Routings are the same on every machine, and in range.
#include <gtest/gtest.h>

#include <set>

#include "perf/routing.hpp"

namespace m2n::perf {
namespace {

const RoutingShape shape{64, 8, 100, 2};

TEST(PerfRouting, DistinctAndInRange) {
  for (const std::string text :
       {"uniform", "zipf:1.2", "zipf:0", "all-to:63", "file:" M2N_DEMO_TRACE}) {
    auto routing = parse_routing(text);
    ASSERT_TRUE(routing) << routing.status().text();
    RoutingShape here = shape;
    if (routing->trace) here.experts = routing->trace->experts;
    for (std::uint64_t operation = 0; operation < 5; ++operation) {
      const Choices choices = make_choices(*routing, here, 1, operation);
      ASSERT_EQ(choices.ids.size(), 800U);
      for (std::size_t t = 0; t < 100; ++t) {
        std::set<std::int32_t> seen;
        for (std::size_t k = 0; k < 8; ++k) {
          const std::int32_t id = choices.ids[t * 8 + k];
          EXPECT_GE(id, 0);
          EXPECT_LT(id, static_cast<std::int32_t>(here.experts));
          EXPECT_TRUE(seen.insert(id).second) << text;
          EXPECT_GE(choices.weights[t * 8 + k], 0.0F);
        }
      }
    }
  }
}

TEST(PerfRouting, Deterministic) {
  for (const std::string text : {"uniform", "zipf:1.2"}) {
    const auto routing = parse_routing(text);
    ASSERT_TRUE(routing);
    const Choices a = make_choices(*routing, shape, 0, 3);
    const Choices b = make_choices(*routing, shape, 0, 3);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_NE(a.ids, make_choices(*routing, shape, 1, 3).ids);
    EXPECT_NE(a.ids, make_choices(*routing, shape, 0, 4).ids);
  }
}

TEST(PerfRouting, UniformIsEvenAndZipfIsNot) {
  const auto busiest = [](const std::string& text) {
    const auto routing = parse_routing(text);
    std::vector<int> counts(shape.experts);
    for (std::uint64_t operation = 0; operation < 20; ++operation) {
      for (const std::int32_t id : make_choices(*routing, shape, 0, operation).ids) {
        ++counts[static_cast<std::size_t>(id)];
      }
    }
    return *std::max_element(counts.begin(), counts.end()) / (20.0 * 800 / shape.experts);
  };
  EXPECT_LT(busiest("uniform"), 1.3);
  EXPECT_GT(busiest("zipf:1.2"), 3.0);
}

TEST(PerfRouting, TracePositions) {
  const auto routing = parse_routing("file:" M2N_DEMO_TRACE);
  ASSERT_TRUE(routing);
  const Trace& trace = *routing->trace;
  // Operation 3: layer 1, second turn; rank 1 of 2 with 100 tokens begins at (1 * 2 + 1) * 100.
  const Choices choices = make_choices(*routing, shape, 1, 3);
  EXPECT_EQ(choices.layer, 1U);
  for (std::uint32_t k = 0; k < 8; ++k) {
    EXPECT_EQ(choices.ids[k], trace.expert[trace.entry(1, 300) + k]);
    EXPECT_EQ(choices.ids[8 + k], trace.expert[trace.entry(1, 301) + k]);
  }
  EXPECT_EQ(routing_period(*routing, shape) % trace.layers, 0U);
  EXPECT_GE(routing_period(*routing, {128, 8, 1U << 20, 1}), trace.layers);
}

}  // namespace
}  // namespace m2n::perf
