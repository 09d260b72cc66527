// Percentiles and the near/far threshold.
#include "perf/stats.hpp"

#include <gtest/gtest.h>

#include "perf/machine.hpp"

namespace m2n::perf {
namespace {

TEST(PerfStats, NearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(percentile(samples, 0.5), 50);
  EXPECT_EQ(percentile(samples, 0.99), 99);
  EXPECT_EQ(percentile(samples, 1.0), 100);
  EXPECT_EQ(percentile(samples, 0.0), 1);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_FALSE(percentile({}, 0.5));
}

TEST(PerfStats, Spread) {
  const auto range = spread({3, 1, 2});
  ASSERT_TRUE(range);
  EXPECT_EQ(range->min, 1);
  EXPECT_EQ(range->mean, 2);
  EXPECT_EQ(range->max, 3);
  EXPECT_FALSE(spread({}));
}

TEST(PerfStats, NearEndsWhereFarBegins) {
  EXPECT_GT(near_limit_ns(50), 65);
  EXPECT_LT(near_limit_ns(65), 235);
  EXPECT_LT(near_limit_ns(240), 235);
  EXPECT_GT(near_limit_ns(157), 160);
}

TEST(PerfMachine, CoresAreSharedByPairsOnlyWhenTheyMustBe) {
  EXPECT_EQ(core_index(0, 1, 1, 2), 0U);
  EXPECT_EQ(core_index(1, 1, 1, 2), 1U);
  // 2x2 on two cores: attention a and expert a share core a.
  EXPECT_EQ(core_index(1, 2, 2, 2), 1U);
  EXPECT_EQ(core_index(2, 2, 2, 2), 0U);
  EXPECT_EQ(core_index(3, 2, 2, 2), 1U);
  EXPECT_EQ(core_index(3, 2, 2, 4), 3U);
}

}  // namespace
}  // namespace m2n::perf
