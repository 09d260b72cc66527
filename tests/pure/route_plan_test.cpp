// RoutePlan against a naive model: every row, entry, pair and contribution of random routings over
// random maps, and the rules of the choice among replicas. Pure, one thread.
#include "collectives/route_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "collectives/placement_map.hpp"
#include "tests/pure/random_map.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

using collectives::Contribution;
using collectives::RoutePlan;
using collectives::RouteShape;
using collectives::Routing;

// The caller's arrays, of one form or the other, with rows that are longer than top_k.
struct Arrays {
  std::uint32_t top_k = 1;
  std::size_t stride = 1;
  bool wide = false;   // 64-bit ids
  bool brief = false;  // bf16 weights
  bool none = false;   // no weights
  std::vector<std::int32_t> ids32;
  std::vector<std::int64_t> ids64;
  std::vector<float> weights32;
  std::vector<std::uint16_t> weights16;

  std::int64_t id(std::uint32_t t, std::uint32_t k) const { return ids64[t * stride + k]; }
  float weight(std::uint32_t t, std::uint32_t k) const {
    return none ? 1.0f : weights32[t * stride + k];
  }
  void set_id(std::uint32_t t, std::uint32_t k, std::int64_t id) {
    ids64[t * stride + k] = id;
    ids32[t * stride + k] = static_cast<std::int32_t>(id);
  }
  Routing routing(std::uint32_t first, std::uint32_t last) const {
    Routing routing;
    routing.ids = wide ? ExpertIds{ids64.data(), stride} : ExpertIds{ids32.data(), stride};
    if (!none) {
      routing.weights = brief ? RoutingWeights{weights16.data(), DataType::bf16, stride}
                              : RoutingWeights{weights32.data(), stride};
    }
    routing.first = first;
    routing.last = last;
    return routing;
  }
};

Arrays random_arrays(Random& random, std::uint32_t tokens, std::uint32_t top_k,
                     std::uint32_t experts) {
  Arrays arrays;
  arrays.top_k = top_k;
  arrays.stride = top_k + random.below(3);
  arrays.wide = random.chance(2);
  arrays.brief = random.chance(3);
  arrays.none = random.chance(6);
  const std::size_t size = tokens * arrays.stride + 1;
  arrays.ids64.assign(size, 1 << 30);  // out of range, where nobody may look
  arrays.ids32.assign(size, 1 << 30);
  for (std::size_t i = 0; i < size; ++i) {
    const float weight = random.chance(5) ? (random.chance(2) ? 0.0f : -0.0f)
                                          : static_cast<float>(random.between(1, 64)) / 16.0f;
    arrays.weights32.push_back(weight);
    arrays.weights16.push_back(
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weight) >> 16));
  }
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t k = 0; k < top_k; ++k) {
      std::int64_t id = random.below(experts);
      if (random.chance(6)) id = -1;
      if (k > 0 && random.chance(5)) id = arrays.id(t, k - 1);
      arrays.set_id(t, k, id);
    }
  }
  return arrays;
}

// What the plan should say, from the routing and the replicas that the plan itself chose.
struct Expectation {
  std::vector<std::vector<RowInfo>> rows;
  std::vector<std::vector<Entry>> entries;
  std::vector<std::uint32_t> pairs;
  std::vector<std::vector<Contribution>> contributions;
  std::vector<std::uint32_t> counts;
  std::uint64_t logical = 0;
};

using Choice = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Replica>;

// (token, expert, part) -> replica, read back from what goes to the ranks.
Choice choices(const RoutePlan& plan, const Placement& placement) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint32_t, std::uint32_t>> owner;
  for (std::uint32_t e = 0; e < placement.experts(); ++e) {
    for (std::uint32_t p = 0; p < placement.parts(e); ++p) {
      for (const Replica& replica : placement.replicas(e, p)) {
        owner[{replica.rank, replica.local_expert}] = {e, p};
      }
    }
  }
  Choice choice;
  for (std::uint32_t r = 0; r < placement.expert_ranks(); ++r) {
    const auto rows = plan.row_info(r);
    const auto entries = plan.entries(r);
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
      for (std::uint32_t j = rows[i].first_entry; j < rows[i + 1].first_entry; ++j) {
        const std::uint32_t local = entries[j].local_expert();
        const auto found = owner.find({r, local});
        if (found == owner.end()) {
          ADD_FAILURE() << "rank " << r << " has no local expert " << local;
          continue;
        }
        const auto [e, p] = found->second;
        const bool fresh =
            choice.emplace(std::tuple{rows[i].token, e, p}, Replica{r, local}).second;
        EXPECT_EQ(fresh, !entries[j].repeated()) << "token " << rows[i].token << " expert " << e;
      }
    }
  }
  return choice;
}

void expect_entry(Expectation& want, const RouteShape& shape, std::uint32_t t, const Entry& entry,
                  std::uint32_t rank, std::uint32_t pair) {
  std::vector<RowInfo>& rows = want.rows[rank];
  std::vector<Contribution>& sum = want.contributions.back();
  if (rows.empty() || rows.back().token != t) {
    if (shape.combine == Combine::reduced) {
      sum.push_back({rank, static_cast<std::uint32_t>(rows.size()), 1.0f});
    }
    rows.push_back({t, static_cast<std::uint32_t>(want.entries[rank].size())});
  }
  want.entries[rank].push_back(entry);
  if (shape.combine == Combine::reduced) return;
  if (shape.weights == Weights::caller) {
    if (!entry.repeated()) sum.push_back({rank, pair, 1.0f});
  } else if (entry.weight != 0.0f) {
    sum.push_back({rank, pair, entry.weight});
  }
}

Expectation expect(const RouteShape& shape, const Placement& placement, const Arrays& arrays,
                   std::pair<std::uint32_t, std::uint32_t> range, const Choice& choice) {
  Expectation want;
  want.rows.resize(placement.expert_ranks());
  want.entries.resize(placement.expert_ranks());
  want.pairs.resize(placement.expert_ranks());
  want.counts.resize(placement.experts());
  for (std::uint32_t t = range.first; t < range.second; ++t) {
    want.contributions.emplace_back();
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> pair_of;  // this token's
    for (std::uint32_t k = 0; k < arrays.top_k; ++k) {
      if (arrays.id(t, k) < 0) continue;
      const auto e = static_cast<std::uint32_t>(arrays.id(t, k));
      ++want.counts[e];
      for (std::uint32_t p = 0; p < placement.parts(e); ++p) {
        ++want.logical;
        const auto found = choice.find({t, e, p});
        if (found == choice.end()) {
          ADD_FAILURE() << "token " << t << " expert " << e << " part " << p << " goes nowhere";
          continue;
        }
        const Replica to = found->second;
        const bool repeated = pair_of.count({e, p}) != 0;
        if (!repeated) pair_of[{e, p}] = want.pairs[to.rank]++;
        const std::uint32_t bits = to.local_expert | (repeated ? Entry::repeat_bit : 0);
        expect_entry(want, shape, t, {bits, arrays.weight(t, k)}, to.rank, pair_of[{e, p}]);
      }
    }
    std::sort(want.contributions.back().begin(), want.contributions.back().end(),
              [&](const Contribution& a, const Contribution& b) {
                return shape.combine == Combine::reduced && a.rank < b.rank;
              });
  }
  return want;
}

void compare_rank(const RoutePlan& plan, const Expectation& want, std::uint32_t r) {
  SCOPED_TRACE("expert rank " + std::to_string(r));
  const auto rows = plan.row_info(r);
  const auto entries = plan.entries(r);
  ASSERT_EQ(rows.size(), want.rows[r].size() + 1);
  ASSERT_EQ(plan.rank(r).rows, want.rows[r].size());
  ASSERT_EQ(entries.size(), want.entries[r].size());
  ASSERT_EQ(plan.rank(r).pairs, want.pairs[r]);
  EXPECT_EQ(rows.back().first_entry, entries.size()) << "the last element closes the list";
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    EXPECT_EQ(rows[i].token, want.rows[r][i].token);
    EXPECT_EQ(rows[i].first_entry, want.rows[r][i].first_entry);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].expert_bits, want.entries[r][i].expert_bits);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(entries[i].weight),
              std::bit_cast<std::uint32_t>(want.entries[r][i].weight));
  }
}

void compare(const RoutePlan& plan, const Expectation& want, std::uint32_t first) {
  for (std::uint32_t r = 0; r < want.rows.size(); ++r) compare_rank(plan, want, r);
  for (std::size_t i = 0; i < want.contributions.size(); ++i) {
    SCOPED_TRACE("token " + std::to_string(first + i));
    const auto got = plan.contributions(first + static_cast<std::uint32_t>(i));
    ASSERT_EQ(got.size(), want.contributions[i].size());
    for (std::size_t c = 0; c < got.size(); ++c) {
      EXPECT_EQ(got[c].rank, want.contributions[i][c].rank);
      EXPECT_EQ(got[c].row, want.contributions[i][c].row);
      EXPECT_EQ(got[c].weight, want.contributions[i][c].weight);
    }
  }
  EXPECT_TRUE(std::equal(plan.expert_counts().begin(), plan.expert_counts().end(),
                         want.counts.begin(), want.counts.end()));
  EXPECT_EQ(plan.logical_rows(), want.logical);
}

RouteShape shape_of(const Placement& placement, std::uint32_t top_k, std::uint32_t tokens) {
  RouteShape shape;
  shape.map = placement.map();
  shape.top_k = top_k;
  shape.max_tokens = tokens;
  shape.local_rank.assign(placement.expert_ranks(), false);
  return shape;
}

TEST(RoutePlan, EqualsTheNaiveModel) {
  for (std::uint64_t seed = 0; seed < 500 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random{seed};
    const Placement placement = random_placement(random);
    const std::uint32_t top_k = random.between(1, 6);
    const std::uint32_t most = random.between(1, 20);
    RouteShape shape = shape_of(placement, top_k, most);
    shape.combine = random.chance(2) ? Combine::reduced : Combine::per_expert;
    shape.weights = random.chance(3) ? Weights::caller : Weights::library;
    shape.choice = random.chance(3) ? ReplicaChoice::local_first : ReplicaChoice::balanced;
    for (std::uint32_t r = 0; r < placement.expert_ranks(); ++r) {
      shape.local_rank[r] = random.chance(3);
    }
    RoutePlan plan{shape};
    for (std::uint64_t operation = 0; operation < 4; ++operation) {
      const std::uint32_t last = random.below(most + 1);
      const std::uint32_t first = random.chance(2) ? 0 : random.below(last + 1);
      const Arrays arrays = random_arrays(random, last, top_k, placement.experts());
      Routing routing = arrays.routing(first, last);
      routing.operation = operation;
      ASSERT_TRUE(plan.make(routing));
      const Choice choice = choices(plan, placement);
      compare(plan, expect(shape, placement, arrays, {first, last}, choice), first);
    }
  }
}

TEST(RoutePlan, ABadIdIsReportedAndNothingElse) {
  const Placement placement = Placement::block(8, 3);
  constexpr std::int64_t bad[] = {-2, 8, 1 << 20, std::numeric_limits<std::int32_t>::min(),
                                  std::numeric_limits<std::int32_t>::max()};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random{seed};
    RoutePlan plan{shape_of(placement, 3, 10)};
    Arrays arrays = random_arrays(random, 10, 3, 8);
    const std::uint32_t t = random.below(10);
    const std::uint32_t k = random.below(3);
    const std::int64_t id = random.pick(bad);
    Arrays wrong = arrays;
    wrong.set_id(t, k, id);
    EXPECT_FALSE(plan.make(wrong.routing(0, 10)));
    EXPECT_EQ(plan.bad_id().token, t);
    EXPECT_EQ(plan.bad_id().k, k);
    EXPECT_EQ(plan.bad_id().id, id);
    // Tokens of another shard are nobody's business.
    EXPECT_TRUE(plan.make(wrong.routing(0, t)));
    EXPECT_TRUE(plan.make(wrong.routing(t + 1, 10)));
    // A refused routing leaves no trace in the next one.
    EXPECT_FALSE(plan.make(wrong.routing(0, 10)));
    ASSERT_TRUE(plan.make(arrays.routing(0, 10)));
    const RouteShape shape = shape_of(placement, 3, 10);
    compare(plan, expect(shape, placement, arrays, {0, 10}, choices(plan, placement)), 0);
  }
}

TEST(RoutePlan, A64BitIdIsNotCutOff) {
  const Placement placement = Placement::block(8, 2);
  RoutePlan plan{shape_of(placement, 1, 1)};
  for (const std::int64_t id : {(std::int64_t{1} << 32) + 3, -(std::int64_t{1} << 32) - 1}) {
    Routing routing;
    routing.ids = ExpertIds{&id};
    routing.last = 1;
    EXPECT_FALSE(plan.make(routing)) << id;
    EXPECT_EQ(plan.bad_id().id, id);
  }
}

}  // namespace
}  // namespace m2n::testing
