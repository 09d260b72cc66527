// Where every token of a dispatch goes, and which reply rows its sum is made of. Pure: no I/O, no
// clock. A RoutePlan is sized once and filled again for every operation; one thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "m2n/batch.hpp"
#include "m2n/placement.hpp"
#include "m2n/types.hpp"

namespace m2n::collectives {

// The routing of tokens [first, last) of a dispatch.
struct Routing {
  ExpertIds ids;
  RoutingWeights weights;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint64_t operation = 0;  // with attention_rank: rotates the choice of replicas
  std::uint32_t attention_rank = 0;
};

struct RouteShape {
  const Placement::Map* map = nullptr;
  std::uint32_t top_k = 1;
  std::uint32_t max_tokens = 0;
  Combine combine = Combine::reduced;
  Weights weights = Weights::library;
  ReplicaChoice choice = ReplicaChoice::balanced;
  std::vector<bool> local_rank;  // expert ranks on this host, for local_first
};

// What goes to one expert rank.
struct RankRoute {
  std::uint32_t rows = 0;
  std::uint32_t entries = 0;
  std::uint32_t pairs = 0;
  std::uint32_t first_row = 0;    // into row_info: rows + 1 values
  std::uint32_t first_entry = 0;  // into entry
};

// A reply row that a token's sum takes in. Entries of weight 0 have none; with the caller's own
// weights a repeated expert has one.
struct Contribution {
  std::uint32_t rank = 0;
  std::uint32_t row = 0;  // reduced: the token's row at that rank; per_expert: the pair
  float weight = 1;
};

// An id outside [-1, experts).
struct BadId {
  std::uint32_t token = 0;
  std::uint32_t k = 0;
  std::int64_t id = 0;
};

class RoutePlan {
 public:
  explicit RoutePlan(const RouteShape& shape);

  // False, with bad_id() set, if an id is out of range; the plan is void then.
  bool make(const Routing& routing);

  const BadId& bad_id() const noexcept { return bad_; }
  const RankRoute& rank(std::uint32_t r) const noexcept { return ranks_[r]; }
  std::span<const RowInfo> row_info(std::uint32_t r) const noexcept {  // rows + 1
    return {row_info_.data() + ranks_[r].first_row, ranks_[r].rows + 1};
  }
  std::span<const Entry> entries(std::uint32_t r) const noexcept {
    return {entry_.data() + ranks_[r].first_entry, ranks_[r].entries};
  }
  // Of token t in [first, last): reduced in expert-rank order, per_expert in (k, part) order.
  std::span<const Contribution> contributions(std::uint32_t t) const noexcept {
    const std::uint32_t i = t - first_;
    return {contribution_.data() + contribution_begin_[i],
            contribution_begin_[i + 1] - contribution_begin_[i]};
  }
  // (token, expert) selections per expert of the last make(), -1 not counted.
  std::span<const std::uint32_t> expert_counts() const noexcept { return expert_count_; }
  std::uint64_t logical_rows() const noexcept { return resolved_.size(); }
  // Of all ranks together.
  std::uint64_t rows() const noexcept { return rows_; }

 private:
  struct Resolved {  // one (token, k, part)
    std::uint32_t rank = 0;
    std::uint32_t expert_bits = 0;
    std::uint32_t pair = 0;
    std::uint32_t first_of = 0;  // for a repeat: the index in resolved_ of the first one
    float weight = 0;
  };

  bool count_selections(const Routing& routing);
  void resolve_token(const Routing& routing, std::uint32_t t);
  void resolve_expert(const Routing& routing, std::uint32_t expert, float weight);
  const Replica& choose(const Routing& routing, std::uint32_t expert,
                        std::span<const Replica> replicas) const;
  void lay_out();
  void fill_token(std::uint32_t t);
  void add_per_expert(const Resolved& resolved, bool repeat);
  void add_reduced(std::uint32_t rank, std::uint32_t row, std::size_t begin);

  RouteShape shape_;
  std::uint32_t first_ = 0;
  std::uint64_t rows_ = 0;
  BadId bad_;
  std::vector<RankRoute> ranks_;
  std::vector<RankRoute> filled_;
  std::vector<RowInfo> row_info_;
  std::vector<Entry> entry_;
  std::vector<Resolved> resolved_;
  std::vector<std::uint32_t> resolved_begin_;  // [tokens + 1]
  std::vector<Contribution> contribution_;
  std::vector<std::uint32_t> contribution_begin_;  // [tokens + 1]
  std::vector<std::uint32_t> expert_count_;        // [experts]
  std::vector<std::uint32_t> copies_;  // [experts] distinct (token, expert), replicated maps only
  std::vector<std::uint32_t> copies_done_;
  // Stamps tell "seen for this token" without clearing: a value never returns.
  std::uint64_t stamp_ = 0;
  std::vector<std::uint64_t> expert_stamp_;  // [experts]
  std::vector<std::uint32_t> expert_first_;  // [experts] index in resolved_ of its first part
  std::vector<std::uint64_t> rank_stamp_;    // [ranks]
};

}  // namespace m2n::collectives
