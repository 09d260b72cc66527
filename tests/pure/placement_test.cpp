// Placement: block maps of any size, maps of one's own, what is refused, and a hash that tells two
// maps apart. Pure, one thread.
#include "m2n/placement.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/pure/random_map.hpp"

namespace m2n::testing {
namespace {

TEST(Placement, BlockMapsOfAnySizeHoldEveryExpertOnce) {
  for (std::uint32_t experts = 1; experts <= 40; ++experts) {
    for (std::uint32_t ranks = 1; ranks <= 12; ++ranks) {
      const Placement placement = Placement::block(experts, ranks);
      ASSERT_TRUE(bool(placement));
      const std::uint32_t per_rank = (experts + ranks - 1) / ranks;
      std::uint32_t sum = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        EXPECT_LE(placement.local_experts(r), per_rank);
        sum += placement.local_experts(r);
      }
      EXPECT_EQ(sum, experts);
      for (std::uint32_t e = 0; e < experts; ++e) {
        ASSERT_EQ(placement.parts(e), 1u);
        ASSERT_EQ(placement.replicas(e, 0).size(), 1u);
        EXPECT_EQ(placement.replicas(e, 0)[0], (Replica{e / per_rank, e % per_rank}));
      }
      EXPECT_EQ(placement.experts(), experts);
      EXPECT_EQ(placement.expert_ranks(), ranks);
      EXPECT_EQ(placement.max_parts(), 1u);
      EXPECT_FALSE(placement.replicated());
    }
  }
}

TEST(Placement, TheLastRanksMayHoldNothing) {
  const Placement placement = Placement::block(5, 4);  // 2, 2, 1, 0
  EXPECT_EQ(placement.local_experts(2), 1u);
  EXPECT_EQ(placement.local_experts(3), 0u);
}

TEST(Placement, GivesBackWhatItWasMadeOf) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random{seed};
    const std::uint32_t ranks = random.between(1, 7);
    const std::vector<ExpertParts> parts = random_parts(random, random.between(1, 20), ranks);
    const Result<Placement> placement = Placement::make(ranks, parts, 42);
    ASSERT_TRUE(bool(placement)) << placement.status().text();
    ASSERT_EQ(placement->experts(), parts.size());
    EXPECT_EQ(placement->version(), 42u);
    std::uint32_t most = 0;
    bool replicated = false;
    std::vector<std::uint32_t> locals(ranks);
    for (std::uint32_t e = 0; e < parts.size(); ++e) {
      ASSERT_EQ(placement->parts(e), parts[e].parts.size());
      most = std::max(most, placement->parts(e));
      for (std::uint32_t p = 0; p < placement->parts(e); ++p) {
        const auto got = placement->replicas(e, p);
        EXPECT_EQ(std::vector<Replica>(got.begin(), got.end()), parts[e].parts[p]);
        replicated |= got.size() > 1;
        for (const Replica& replica : got) {
          locals[replica.rank] = std::max(locals[replica.rank], replica.local_expert + 1);
        }
      }
    }
    EXPECT_EQ(placement->max_parts(), most);
    EXPECT_EQ(placement->replicated(), replicated);
    for (std::uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(placement->local_experts(r), locals[r]);
  }
}

void expect_refused(std::uint32_t ranks, const std::vector<ExpertParts>& parts,
                    const std::vector<std::string>& words) {
  const Result<Placement> placement = Placement::make(ranks, parts);
  ASSERT_FALSE(bool(placement));
  EXPECT_EQ(placement.code(), Code::invalid);
  for (const std::string& word : words) {
    EXPECT_NE(placement.status().text().find(word), std::string::npos)
        << "\"" << word << "\" is not in: " << placement.status().text();
  }
}

TEST(Placement, WrongMapsAreRefusedByName) {
  const ExpertParts good{{{{0, 0}}}};
  expect_refused(0, {good}, {"0 ranks", "Placement::make"});
  expect_refused(2, {}, {"0 experts"});
  expect_refused(2, {good, {}}, {"expert 1", "0 parts"});
  expect_refused(2, {good, {{{{1, 0}}, {}}}}, {"expert 1", "0 replicas"});
  expect_refused(2, {good, {{{{2, 0}}}}}, {"expert 1", "rank 2", "0..1"});
  expect_refused(2, {good, {{{{0, 0}}}}}, {"expert 1", "rank 0, local expert 0", "second time"});
  expect_refused(2, {{{{{1, 3}, {1, 3}}}}}, {"expert 0", "rank 1, local expert 3"});
  expect_refused(2, {{{{{1, 1u << 20}}}}}, {"local expert 1048576"});
  EXPECT_FALSE(bool(Placement::block(0, 3)));
  EXPECT_FALSE(bool(Placement::block(3, 0)));
}

// Every map that differs from `parts` in one place, as far as it is a map.
std::vector<Placement> neighbours(std::uint32_t ranks, const std::vector<ExpertParts>& parts) {
  std::vector<Placement> all;
  const auto keep = [&](std::uint32_t r, const std::vector<ExpertParts>& changed,
                        std::uint32_t version = 1) {
    if (Result<Placement> made = Placement::make(r, changed, version)) all.push_back(*made);
  };
  keep(ranks, parts, 2);
  keep(ranks + 1, parts);
  std::vector<ExpertParts> changed = parts;
  changed.push_back({{{{0, 999}}}});
  keep(ranks, changed);
  for (std::size_t e = 0; e < parts.size(); ++e) {
    if (e > 0 && parts[e - 1].parts.size() > 1) {  // the same parts, of another expert
      changed = parts;
      changed[e].parts.insert(changed[e].parts.begin(), changed[e - 1].parts.back());
      changed[e - 1].parts.pop_back();
      keep(ranks, changed);
    }
    for (std::size_t p = 0; p < parts[e].parts.size(); ++p) {
      changed = parts;
      changed[e].parts.insert(changed[e].parts.begin() + static_cast<std::ptrdiff_t>(p),
                              {Replica{0, 999}});
      keep(ranks, changed);
      changed = parts;
      changed[e].parts[p].push_back({0, 999});
      keep(ranks, changed);
      for (std::size_t c = 0; c < parts[e].parts[p].size(); ++c) {
        for (const auto& [rank, local] : {std::pair{1u, 0u}, std::pair{0u, 1000u}}) {
          changed = parts;
          Replica& replica = changed[e].parts[p][c];
          replica = {(replica.rank + rank) % ranks, replica.local_expert + local};
          if (replica != parts[e].parts[p][c]) keep(ranks, changed);
        }
        if (c == 0) continue;
        changed = parts;
        std::swap(changed[e].parts[p][c - 1], changed[e].parts[p][c]);
        keep(ranks, changed);
        changed = parts;  // the same replicas, cut into parts elsewhere
        changed[e].parts.push_back({changed[e].parts[p].back()});
        changed[e].parts[p].pop_back();
        keep(ranks, changed);
      }
    }
  }
  return all;
}

TEST(Placement, AnyChangeChangesTheHashAndNothingElseDoes) {
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random{seed};
    const std::uint32_t ranks = random.between(1, 5);
    const std::vector<ExpertParts> parts = random_parts(random, random.between(1, 10), ranks);
    const Placement placement = *Placement::make(ranks, parts, 1);
    EXPECT_EQ(placement.hash(), Placement::make(ranks, parts, 1)->hash());
    std::set<std::uint64_t> hashes{placement.hash()};
    for (const Placement& other : neighbours(ranks, parts)) {
      EXPECT_NE(other.hash(), placement.hash());
      hashes.insert(other.hash());
      ++compared;
    }
    EXPECT_GT(hashes.size(), 2u);
  }
  EXPECT_GT(compared, 500u);
}

// FNV-1a over the numbers' bytes, the lowest first: ranks of one group that run different builds
// compare these values, so they are part of the wire format.
TEST(Placement, TheHashIsTheSameOnEveryMachine) {
  // version, ranks, part offsets, replica offsets, (rank, local expert) of 4 experts on 2 ranks
  const std::uint32_t numbers[] = {0, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 0, 1, 1, 0, 1, 1};
  std::uint64_t hash = 14'695'981'039'346'656'037u;
  for (const std::uint32_t number : numbers) {
    for (std::uint32_t byte = 0; byte < 4; ++byte) {
      hash ^= number >> (8 * byte) & 0xFF;
      hash *= 1'099'511'628'211u;
    }
  }
  EXPECT_EQ(Placement::block(4, 2).hash(), hash);
}

}  // namespace
}  // namespace m2n::testing
