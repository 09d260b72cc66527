#include "collectives/route_plan.hpp"

#include <algorithm>
#include <bit>

#include "collectives/placement_map.hpp"

namespace m2n::collectives {
namespace {

std::int64_t id_at(const ExpertIds& ids, std::uint32_t t, std::uint32_t k,
                   std::uint32_t top_k) noexcept {
  const std::size_t i = std::size_t{t} * (ids.row_stride != 0 ? ids.row_stride : top_k) + k;
  return ids.type == ExpertIds::Type::i32 ? static_cast<const std::int32_t*>(ids.base)[i]
                                          : static_cast<const std::int64_t*>(ids.base)[i];
}

float weight_at(const RoutingWeights& weights, std::uint32_t t, std::uint32_t k,
                std::uint32_t top_k) noexcept {
  if (weights.base == nullptr) return 1.0f;
  const std::size_t i = std::size_t{t} * (weights.row_stride != 0 ? weights.row_stride : top_k) + k;
  if (weights.type == DataType::f32) return static_cast<const float*>(weights.base)[i];
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(weights.base)[i]}
                              << 16);
}

}  // namespace

RoutePlan::RoutePlan(const RouteShape& shape) : shape_{shape} {
  const Placement::Map& map = *shape.map;
  const std::size_t experts = map.first_part.size() - 1;
  const std::size_t entries = std::size_t{shape.max_tokens} * shape.top_k * map.max_parts;
  const std::size_t fan_out =
      std::min<std::size_t>(map.ranks, std::size_t{shape.top_k} * map.max_parts);
  ranks_.resize(map.ranks);
  filled_.resize(map.ranks);
  row_info_.resize(std::size_t{shape.max_tokens} * fan_out + map.ranks);
  entry_.resize(entries);
  resolved_.reserve(entries);
  resolved_begin_.resize(std::size_t{shape.max_tokens} + 1);
  contribution_.reserve(entries);
  contribution_begin_.resize(std::size_t{shape.max_tokens} + 1);
  expert_count_.resize(experts);
  if (map.replicated) {
    copies_.resize(experts);
    copies_done_.resize(experts);
  }
  expert_stamp_.resize(experts);
  expert_first_.resize(experts);
  rank_stamp_.resize(map.ranks);
}

bool RoutePlan::make(const Routing& routing) {
  first_ = routing.first;
  std::fill(expert_count_.begin(), expert_count_.end(), 0);
  if (!count_selections(routing)) return false;
  std::fill(ranks_.begin(), ranks_.end(), RankRoute{});
  resolved_.clear();
  contribution_.clear();
  for (std::uint32_t t = routing.first; t < routing.last; ++t) {
    resolved_begin_[t - first_] = static_cast<std::uint32_t>(resolved_.size());
    resolve_token(routing, t);
  }
  resolved_begin_[routing.last - first_] = static_cast<std::uint32_t>(resolved_.size());
  lay_out();
  for (std::uint32_t t = routing.first; t < routing.last; ++t) {
    contribution_begin_[t - first_] = static_cast<std::uint32_t>(contribution_.size());
    fill_token(t);
  }
  contribution_begin_[routing.last - first_] = static_cast<std::uint32_t>(contribution_.size());
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    row_info_[ranks_[r].first_row + ranks_[r].rows] = {0, ranks_[r].entries};
  }
  return true;
}

// Checks every id before anything else happens, and counts.
bool RoutePlan::count_selections(const Routing& routing) {
  const auto experts = static_cast<std::int64_t>(expert_count_.size());
  const bool replicated = !copies_.empty();
  std::fill(copies_.begin(), copies_.end(), 0);
  std::fill(copies_done_.begin(), copies_done_.end(), 0);
  for (std::uint32_t t = routing.first; t < routing.last; ++t) {
    ++stamp_;
    for (std::uint32_t k = 0; k < shape_.top_k; ++k) {
      const std::int64_t id = id_at(routing.ids, t, k, shape_.top_k);
      if (id == -1) continue;
      if (id < 0 || id >= experts) {
        bad_ = {t, k, id};
        return false;
      }
      const auto e = static_cast<std::size_t>(id);
      ++expert_count_[e];
      if (replicated && expert_stamp_[e] != stamp_) {
        expert_stamp_[e] = stamp_;
        ++copies_[e];
      }
    }
  }
  return true;
}

void RoutePlan::resolve_token(const Routing& routing, std::uint32_t t) {
  ++stamp_;
  for (std::uint32_t k = 0; k < shape_.top_k; ++k) {
    const std::int64_t id = id_at(routing.ids, t, k, shape_.top_k);
    if (id == -1) continue;
    resolve_expert(routing, static_cast<std::uint32_t>(id),
                   weight_at(routing.weights, t, k, shape_.top_k));
  }
}

void RoutePlan::resolve_expert(const Routing& routing, std::uint32_t expert, float weight) {
  const Placement::Map& map = *shape_.map;
  const std::uint32_t part_begin = map.first_part[expert];
  const std::uint32_t parts = map.first_part[expert + 1] - part_begin;
  const bool repeat = expert_stamp_[expert] == stamp_;
  if (!repeat) {
    expert_stamp_[expert] = stamp_;
    expert_first_[expert] = static_cast<std::uint32_t>(resolved_.size());
  }
  for (std::uint32_t p = 0; p < parts; ++p) {
    Resolved entry;
    entry.weight = weight;
    if (repeat) {
      entry.first_of = expert_first_[expert] + p;
      entry.rank = resolved_[entry.first_of].rank;
      entry.expert_bits = resolved_[entry.first_of].expert_bits | Entry::repeat_bit;
    } else {
      const std::uint32_t begin = map.first_replica[part_begin + p];
      const std::uint32_t count = map.first_replica[part_begin + p + 1] - begin;
      const std::span<const Replica> replicas{map.replicas.data() + begin, count};
      const Replica& replica = count == 1 ? replicas[0] : choose(routing, expert, replicas);
      entry.rank = replica.rank;
      entry.expert_bits = replica.local_expert;
    }
    RankRoute& route = ranks_[entry.rank];
    if (rank_stamp_[entry.rank] != stamp_) {
      rank_stamp_[entry.rank] = stamp_;
      ++route.rows;
    }
    ++route.entries;
    resolved_.push_back(entry);
  }
  if (!repeat && !copies_done_.empty()) ++copies_done_[expert];
}

// Copies of an expert within a batch go to its replicas in disjoint intervals; where the intervals
// begin rotates with the operation, so that one token per step is balanced over many steps.
const Replica& RoutePlan::choose(const Routing& routing, std::uint32_t expert,
                                 std::span<const Replica> replicas) const {
  if (shape_.choice == ReplicaChoice::local_first) {
    for (const Replica& replica : replicas) {
      if (shape_.local_rank[replica.rank]) return replica;
    }
  }
  const std::uint64_t interval =
      std::uint64_t{copies_done_[expert]} * replicas.size() / copies_[expert];
  return replicas[(interval + routing.operation + routing.attention_rank) % replicas.size()];
}

void RoutePlan::lay_out() {
  std::uint32_t row = 0;
  std::uint32_t entry = 0;
  for (RankRoute& route : ranks_) {
    route.first_row = row;
    route.first_entry = entry;
    row += route.rows + 1;
    entry += route.entries;
  }
  rows_ = row - ranks_.size();
  std::fill(filled_.begin(), filled_.end(), RankRoute{});
}

void RoutePlan::fill_token(std::uint32_t t) {
  ++stamp_;
  const std::size_t begin = contribution_.size();
  for (std::uint32_t i = resolved_begin_[t - first_]; i < resolved_begin_[t - first_ + 1]; ++i) {
    Resolved& resolved = resolved_[i];
    RankRoute& route = ranks_[resolved.rank];
    RankRoute& filled = filled_[resolved.rank];
    if (rank_stamp_[resolved.rank] != stamp_) {
      rank_stamp_[resolved.rank] = stamp_;
      row_info_[route.first_row + filled.rows] = {t, filled.entries};
      if (shape_.combine == Combine::reduced) add_reduced(resolved.rank, filled.rows, begin);
      ++filled.rows;
    }
    entry_[route.first_entry + filled.entries++] = {resolved.expert_bits, resolved.weight};
    const bool repeat = (resolved.expert_bits & Entry::repeat_bit) != 0;
    resolved.pair = repeat ? resolved_[resolved.first_of].pair : route.pairs++;
    if (shape_.combine == Combine::per_expert) add_per_expert(resolved, repeat);
  }
}

void RoutePlan::add_per_expert(const Resolved& resolved, bool repeat) {
  if (shape_.weights == Weights::caller) {
    if (!repeat) contribution_.push_back({resolved.rank, resolved.pair, 1.0f});
  } else if (resolved.weight != 0.0f) {
    contribution_.push_back({resolved.rank, resolved.pair, resolved.weight});
  }
}

// Keeps a token's contributions in expert-rank order; there are few, and they are nearly sorted.
void RoutePlan::add_reduced(std::uint32_t rank, std::uint32_t row, std::size_t begin) {
  contribution_.push_back({rank, row, 1.0f});
  for (std::size_t i = contribution_.size() - 1; i > begin && contribution_[i - 1].rank > rank;
       --i) {
    std::swap(contribution_[i], contribution_[i - 1]);
  }
}

}  // namespace m2n::collectives
