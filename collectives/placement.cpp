#include "m2n/placement.hpp"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "collectives/placement_map.hpp"
#include "transport/text.hpp"

namespace m2n {
namespace {

using transport::refuse;

// FNV-1a over 32-bit values, so that every machine agrees.
class Hash {
 public:
  void add(std::uint32_t value) noexcept {
    for (int shift = 0; shift < 32; shift += 8) {
      state_ = (state_ ^ ((value >> shift) & 0xff)) * 0x100'0000'01b3ull;
    }
  }
  std::uint64_t value() const noexcept { return state_; }

 private:
  std::uint64_t state_ = 0xcbf2'9ce4'8422'2325ull;
};

std::uint64_t hash_of(const Placement::Map& map) {
  Hash hash;
  hash.add(map.version);
  hash.add(map.ranks);
  for (std::uint32_t first : map.first_part) hash.add(first);
  for (std::uint32_t first : map.first_replica) hash.add(first);
  for (const Replica& replica : map.replicas) {
    hash.add(replica.rank);
    hash.add(replica.local_expert);
  }
  return hash.value();
}

Status check_replica(const Replica& replica, std::uint32_t expert, std::uint32_t ranks,
                     std::unordered_set<std::uint64_t>& used) {
  const std::string where = "replica of expert " + std::to_string(expert);
  if (replica.rank >= ranks) {
    return refuse({"Placement::make", where, "rank " + std::to_string(replica.rank),
                   "0.." + std::to_string(ranks - 1), -1, "the placement"});
  }
  if (replica.local_expert >= (1u << 20)) {
    return refuse({"Placement::make", where, "local expert " + std::to_string(replica.local_expert),
                   "0..1048575", -1, "the placement"});
  }
  if (!used.insert(std::uint64_t{replica.rank} << 32 | replica.local_expert).second) {
    return refuse({"Placement::make", where,
                   "(rank " + std::to_string(replica.rank) + ", local expert " +
                       std::to_string(replica.local_expert) + ") a second time",
                   "each (rank, local expert) once", -1, "the placement"});
  }
  return {};
}

Status add_expert(Placement::Map& map, const ExpertParts& parts, std::uint32_t expert,
                  std::unordered_set<std::uint64_t>& used) {
  const std::string name = "expert " + std::to_string(expert);
  if (parts.parts.empty()) {
    return refuse({"Placement::make", name, "0 parts", "at least 1", -1, "the placement"});
  }
  for (const std::vector<Replica>& replicas : parts.parts) {
    if (replicas.empty()) {
      return refuse(
          {"Placement::make", name, "a part with 0 replicas", "at least 1", -1, "the placement"});
    }
    for (const Replica& replica : replicas) {
      if (Status status = check_replica(replica, expert, map.ranks, used); !status) return status;
      map.replicas.push_back(replica);
      std::uint32_t& local = map.local_experts[replica.rank];
      local = std::max(local, replica.local_expert + 1);
    }
    map.replicated |= replicas.size() > 1;
    map.first_replica.push_back(static_cast<std::uint32_t>(map.replicas.size()));
  }
  map.max_parts = std::max(map.max_parts, static_cast<std::uint32_t>(parts.parts.size()));
  map.first_part.push_back(static_cast<std::uint32_t>(map.first_replica.size() - 1));
  return {};
}

}  // namespace

Result<Placement> Placement::make(std::uint32_t expert_ranks, std::span<const ExpertParts> experts,
                                  std::uint32_t version) {
  if (expert_ranks == 0 || expert_ranks > 65536 || experts.empty() || experts.size() > (1u << 20)) {
    return refuse(
        {"Placement::make", "size",
         std::to_string(experts.size()) + " experts on " + std::to_string(expert_ranks) + " ranks",
         "1..1048576 experts on 1..65536 ranks", -1, "the placement"});
  }
  auto map = std::make_shared<Map>();
  map->ranks = expert_ranks;
  map->version = version;
  map->local_experts.assign(expert_ranks, 0);
  map->first_part = {0};
  map->first_replica = {0};
  std::unordered_set<std::uint64_t> used;
  for (std::uint32_t e = 0; e < experts.size(); ++e) {
    if (Status status = add_expert(*map, experts[e], e, used); !status) return status;
  }
  map->hash = hash_of(*map);
  return Placement{std::move(map)};
}

Placement Placement::block(std::uint32_t experts, std::uint32_t expert_ranks) {
  if (experts == 0 || experts > (1u << 20) || expert_ranks == 0) return {};
  const std::uint32_t per_rank = (experts - 1) / expert_ranks + 1;
  std::vector<ExpertParts> parts(experts);
  for (std::uint32_t e = 0; e < experts; ++e) parts[e].parts = {{{e / per_rank, e % per_rank}}};
  Result<Placement> placement = make(expert_ranks, parts);
  return placement ? *placement : Placement{};
}

std::uint32_t Placement::experts() const noexcept {
  return !map_ ? 0 : static_cast<std::uint32_t>(map_->first_part.size() - 1);
}
std::uint32_t Placement::expert_ranks() const noexcept {
  return !map_ ? 0 : map_->ranks;
}
std::uint32_t Placement::max_parts() const noexcept {
  return !map_ ? 0 : map_->max_parts;
}
std::uint32_t Placement::parts(std::uint32_t expert) const noexcept {
  return map_->first_part[expert + 1] - map_->first_part[expert];
}
std::span<const Replica> Placement::replicas(std::uint32_t expert,
                                             std::uint32_t part) const noexcept {
  const std::uint32_t index = map_->first_part[expert] + part;
  const std::uint32_t begin = map_->first_replica[index];
  return {map_->replicas.data() + begin, map_->first_replica[index + 1] - begin};
}
std::uint32_t Placement::local_experts(std::uint32_t expert_rank) const noexcept {
  return map_->local_experts[expert_rank];
}
bool Placement::replicated() const noexcept {
  return map_ && map_->replicated;
}
std::uint32_t Placement::version() const noexcept {
  return !map_ ? 0 : map_->version;
}
std::uint64_t Placement::hash() const noexcept {
  return !map_ ? 0 : map_->hash;
}

}  // namespace m2n
