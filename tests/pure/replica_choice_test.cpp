// Which replica of an expert a token goes to: disjoint intervals, balance within a batch and over
// time, local copies first, and the same answer to the same question. Pure, one thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "collectives/route_plan.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::RoutePlan;
using collectives::RouteShape;
using collectives::Routing;

// Expert 0 has `replicas` copies, one each on ranks 0, 1, ...; expert 1 has one on the last rank.
Placement one_hot_expert(std::uint32_t replicas) {
  std::vector<ExpertParts> experts(2);
  experts[0].parts.resize(1);
  for (std::uint32_t r = 0; r < replicas; ++r) experts[0].parts[0].push_back({r, 0});
  experts[1].parts = {{{replicas - 1, 1}}};
  return *Placement::make(replicas, experts);
}

RouteShape shape_of(const Placement& placement, std::uint32_t top_k, std::uint32_t tokens) {
  RouteShape shape;
  shape.map = placement.map();
  shape.top_k = top_k;
  shape.max_tokens = tokens;
  shape.local_rank.assign(placement.expert_ranks(), false);
  return shape;
}

Routing routing_of(const std::vector<std::int32_t>& ids, std::uint32_t tokens,
                   std::uint64_t operation, std::uint32_t attention_rank = 0) {
  Routing routing;
  routing.ids = ExpertIds{ids.data()};
  routing.last = tokens;
  routing.operation = operation;
  routing.attention_rank = attention_rank;
  return routing;
}

// Token -> rank of its copy of expert 0 (one copy a rank, local expert 0), or -1.
std::vector<int> ranks_of(const RoutePlan& plan, std::uint32_t ranks, std::uint32_t tokens) {
  std::vector<int> rank_of(tokens, -1);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto rows = plan.row_info(r);
    const auto entries = plan.entries(r);
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
      for (std::uint32_t j = rows[i].first_entry; j < rows[i + 1].first_entry; ++j) {
        if (entries[j].local_expert() != 0 || entries[j].repeated()) continue;
        EXPECT_EQ(rank_of[rows[i].token], -1) << "two copies of token " << rows[i].token;
        rank_of[rows[i].token] = static_cast<int>(r);
      }
    }
  }
  return rank_of;
}

TEST(ReplicaChoice, CopiesGoInDisjointBalancedIntervals) {
  for (const std::uint32_t replicas : {2u, 3u, 4u, 7u}) {
    for (const std::uint32_t tokens : {1u, 2u, 5u, 100u, 331u}) {
      Random random{replicas * 1000 + tokens};
      const Placement placement = one_hot_expert(replicas);
      RoutePlan plan{shape_of(placement, 2, tokens)};
      // Some tokens choose it twice (one copy), some not at all (no load).
      std::vector<std::int32_t> ids(std::size_t{tokens} * 2);
      std::uint32_t copies = 0;
      for (std::uint32_t t = 0; t < tokens; ++t) {
        ids[2 * t] = random.chance(5) ? -1 : 0;
        ids[2 * t + 1] = random.chance(3) ? 0 : random.chance(2) ? 1 : -1;
        copies += ids[2 * t] == 0 || ids[2 * t + 1] == 0 ? 1 : 0;
      }
      ASSERT_TRUE(plan.make(routing_of(ids, tokens, 5)));
      std::vector<int> order = ranks_of(plan, replicas, tokens);
      std::erase(order, -1);
      ASSERT_EQ(order.size(), copies);
      std::vector<std::uint32_t> load(replicas);
      for (const int r : order) ++load[static_cast<std::size_t>(r)];
      const auto [least, most] = std::minmax_element(load.begin(), load.end());
      EXPECT_LE(*most - *least, 1u);
      const auto runs = std::unique(order.begin(), order.end());
      EXPECT_EQ(static_cast<std::size_t>(runs - order.begin()),
                std::set<int>(order.begin(), runs).size())
          << "a replica has two intervals";
    }
  }
}

TEST(ReplicaChoice, OneTokenPerStepIsBalancedOverTime) {
  for (const std::uint32_t replicas : {2u, 3u, 5u}) {
    const Placement placement = one_hot_expert(replicas);
    RoutePlan plan{shape_of(placement, 1, 1)};
    for (const std::uint32_t attention_ranks : {1u, 2u, 3u}) {
      std::vector<double> load(replicas);
      constexpr std::uint32_t steps = 600;
      for (std::uint32_t step = 0; step < steps; ++step) {
        for (std::uint32_t a = 0; a < attention_ranks; ++a) {
          ASSERT_TRUE(plan.make(routing_of({0}, 1, step, a)));
          ++load[static_cast<std::size_t>(ranks_of(plan, replicas, 1)[0])];
        }
      }
      const double mean = double{steps} * attention_ranks / replicas;
      for (const double one : load) EXPECT_NEAR(one, mean, 0.05 * mean);
    }
  }
}

TEST(ReplicaChoice, AttentionRanksOfOneStepDoNotAllChooseTheSame) {
  const Placement placement = one_hot_expert(4);
  RoutePlan plan{shape_of(placement, 1, 1)};
  std::set<int> chosen;
  for (std::uint32_t a = 0; a < 4; ++a) {
    ASSERT_TRUE(plan.make(routing_of({0}, 1, 0, a)));
    chosen.insert(ranks_of(plan, 4, 1)[0]);
  }
  EXPECT_EQ(chosen.size(), 4u);
}

TEST(ReplicaChoice, LocalFirstKeepsToTheHost) {
  const Placement placement = one_hot_expert(4);
  RouteShape shape = shape_of(placement, 1, 50);
  shape.choice = ReplicaChoice::local_first;
  const std::vector<std::int32_t> ids(50, 0);
  for (std::uint32_t local = 0; local < 4; ++local) {
    shape.local_rank.assign(4, false);
    shape.local_rank[local] = true;
    RoutePlan plan{shape};
    for (std::uint64_t step = 0; step < 5; ++step) {
      ASSERT_TRUE(plan.make(routing_of(ids, 50, step)));
      EXPECT_EQ(plan.rank(local).rows, 50u);
    }
  }
  // Without a local copy it is balanced.
  shape.local_rank.assign(4, false);
  RoutePlan plan{shape};
  ASSERT_TRUE(plan.make(routing_of(ids, 50, 0)));
  for (std::uint32_t r = 0; r < 4; ++r) EXPECT_NEAR(plan.rank(r).rows, 12.5, 0.5);
  // local_rank counts for local_first only.
  shape.choice = ReplicaChoice::balanced;
  shape.local_rank[2] = true;
  RoutePlan balanced{shape};
  ASSERT_TRUE(balanced.make(routing_of(ids, 50, 0)));
  for (std::uint32_t r = 0; r < 4; ++r) EXPECT_NEAR(balanced.rank(r).rows, 12.5, 0.5);
}

TEST(ReplicaChoice, TheSameQuestionHasTheSameAnswer) {
  const Placement placement = one_hot_expert(3);
  Random random{3};
  std::vector<std::int32_t> ids(40);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(3)) - 1;
  RoutePlan fresh{shape_of(placement, 1, 40)};
  RoutePlan used{shape_of(placement, 1, 40)};
  for (std::uint64_t step = 0; step < 7; ++step) {
    ASSERT_TRUE(used.make(routing_of(std::vector<std::int32_t>(40, 0), 40, step)));
  }
  ASSERT_TRUE(fresh.make(routing_of(ids, 40, 9, 1)));
  ASSERT_TRUE(used.make(routing_of(ids, 40, 9, 1)));
  EXPECT_EQ(ranks_of(fresh, 3, 40), ranks_of(used, 3, 40));
}

}  // namespace
}  // namespace m2n::testing
