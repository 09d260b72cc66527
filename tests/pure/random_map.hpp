// Random placements for property tests: parts, replicas, and local indices in any order. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "m2n/placement.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {

inline std::vector<ExpertParts> random_parts(Random& random, std::uint32_t experts,
                                             std::uint32_t ranks) {
  std::vector<std::uint32_t> used(ranks);
  std::vector<ExpertParts> map(experts);
  const bool with_parts = random.chance(2);
  const bool with_replicas = random.chance(2);
  for (ExpertParts& expert : map) {
    expert.parts.resize(with_parts ? random.between(1, 3) : 1);
    for (std::vector<Replica>& replicas : expert.parts) {
      const std::uint32_t copies = with_replicas ? random.between(1, 3) : 1;
      for (std::uint32_t c = 0; c < copies; ++c) {
        const std::uint32_t rank = random.below(ranks);
        used[rank] += random.between(1, 2);  // some local indices are unused
        replicas.push_back({rank, used[rank]});
      }
    }
  }
  return map;
}

inline Placement random_placement(Random& random) {
  const std::uint32_t ranks = random.between(1, 6);
  const std::uint32_t experts = random.between(1, 24);
  if (random.chance(4)) return Placement::block(experts, ranks);
  return *Placement::make(ranks, random_parts(random, experts, ranks), random.below(9));
}

}  // namespace m2n::testing
