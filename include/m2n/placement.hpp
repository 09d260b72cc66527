// Which ranks hold which experts: expert -> parts -> replicas. Immutable once made; copies share
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "m2n/export.hpp"
#include "m2n/status.hpp"

namespace m2n {

// One physical copy of one part of an expert.
struct Replica {
  std::uint32_t rank = 0;          // expert rank, 0..N-1
  std::uint32_t local_expert = 0;  // index among the experts of that rank
  friend bool operator==(const Replica&, const Replica&) = default;
};

// parts[p] lists the replicas of part p. Every part gets the token and their outputs add (tensor
// parallel shards, or low-bit weights plus residual); of a part's replicas one is chosen per token.
struct ExpertParts {
  std::vector<std::vector<Replica>> parts;
};

class M2N_EXPORT Placement {
 public:
  Placement() = default;

  // One part, one replica: expert e lives on rank e / ceil(experts / ranks). The last ranks may
  // hold fewer experts, or none. Empty for 0 experts or ranks, and for more
  // than 1'048'576 experts or 65'536 ranks.
  static Placement block(std::uint32_t experts, std::uint32_t expert_ranks);

  // A map of the user's own. `invalid` for an expert without parts, a part without replicas, a rank
  // out of range, or a (rank, local expert) that is used twice.
  static Result<Placement> make(std::uint32_t expert_ranks, std::span<const ExpertParts> experts,
                                std::uint32_t version = 0);

  // An empty placement has 0 of everything; parts, replicas and local_experts need indices in
  // range.
  explicit operator bool() const noexcept { return map_ != nullptr; }
  std::uint32_t experts() const noexcept;
  std::uint32_t expert_ranks() const noexcept;
  // Largest number of parts of any expert.
  std::uint32_t max_parts() const noexcept;
  std::uint32_t parts(std::uint32_t expert) const noexcept;
  std::span<const Replica> replicas(std::uint32_t expert, std::uint32_t part) const noexcept;
  // Physical experts on a rank: 1 + the largest local index in use.
  std::uint32_t local_experts(std::uint32_t expert_rank) const noexcept;
  bool replicated() const noexcept;
  std::uint32_t version() const noexcept;
  // Equal maps of equal version hash equally on every machine.
  std::uint64_t hash() const noexcept;

  struct Map;  // collectives/placement_map.hpp

  const Map* map() const noexcept { return map_.get(); }

 private:
  explicit Placement(std::shared_ptr<const Map> map) : map_{std::move(map)} {}
  std::shared_ptr<const Map> map_;
};

}  // namespace m2n
