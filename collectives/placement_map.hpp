// What a Placement holds: three flat arrays, so that a look-up on the way of a token is two loads.
#pragma once

#include <cstdint>
#include <vector>

#include "m2n/placement.hpp"

namespace m2n {

struct Placement::Map {
  std::uint32_t ranks = 0;
  std::uint32_t version = 0;
  std::uint32_t max_parts = 1;
  bool replicated = false;
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> first_part;     // [E + 1] into first_replica
  std::vector<std::uint32_t> first_replica;  // [parts of all experts + 1] into replicas
  std::vector<Replica> replicas;
  std::vector<std::uint32_t> local_experts;  // [ranks]
};

}  // namespace m2n
