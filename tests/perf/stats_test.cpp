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

// Latencies seen on real machines, in the order they may come in.
TEST(PerfStats, NearEndsWhereFarBegins) {
  struct Machine {
    double smallest;
    std::vector<double> near, far;
  };
  const Machine machines[] = {
      {50, {50, 57, 65}, {110, 235, 260}},  // virtual cores that move between caches
      {65, {65, 84}, {235}},
      {125, {125, 130, 160}, {250, 400}},  // one mesh, always the same
      {25, {25, 32}, {55, 100}},           // desktop: within and across core complexes
      {235, {}, {235, 260}},               // never on one cache
      {180, {}, {180}}};
  for (const Machine& machine : machines) {
    const double limit = near_limit_ns(machine.smallest);
    for (const double ns : machine.near) {
      EXPECT_EQ(state_of({ns, ns}, limit), CoreState::near) << machine.smallest << " " << ns;
    }
    for (const double ns : machine.far) {
      EXPECT_EQ(state_of({ns, ns}, limit), CoreState::far) << machine.smallest << " " << ns;
    }
  }
}

TEST(PerfStats, ABlockThatChangedItsStateHasNone) {
  const double limit = near_limit_ns(60);  // 102
  EXPECT_FALSE(state_of({60.0, 240.0}, limit));
  EXPECT_FALSE(state_of({240.0, 60.0}, limit));
  // On either side of the limit, but the same: the nearer state.
  EXPECT_EQ(state_of({95.0, 105.0}, limit), CoreState::near);
  EXPECT_EQ(state_of({95.0, 120.0}, limit), CoreState::far);
  EXPECT_FALSE(state_of({90.0, 120.0}, limit));
  EXPECT_EQ(state_of({}, limit), CoreState::near);
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
