// Configurations are checked field by field, before anything is sent or registered.
#include <string>

#include "collectives/channel_impl.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

using transport::refuse;

bool is_float(DataType type) {
  return type == DataType::bf16 || type == DataType::f16 || type == DataType::f32;
}

// One row of a table of limits.
struct Limit {
  const char* field;
  std::uint64_t value;
  std::uint64_t low;
  std::uint64_t high;
};

Status check_limits(const char* function, const char* config, std::span<const Limit> limits,
                    std::int32_t rank) {
  for (const Limit& limit : limits) {
    if (limit.value >= limit.low && limit.value <= limit.high) continue;
    return refuse({function, limit.field, std::to_string(limit.value),
                   std::to_string(limit.low) + ".." + std::to_string(limit.high), rank,
                   std::string{config} + "::" + limit.field});
  }
  return {};
}

Status check_placement(const ChannelConfig& config, std::uint32_t expert_ranks, std::int32_t rank) {
  if (!config.placement) return {};
  if (config.placement.experts() != config.experts) {
    return refuse({"open", "placement", std::to_string(config.placement.experts()) + " experts",
                   std::to_string(config.experts), rank, "ChannelConfig::experts and placement"});
  }
  if (config.placement.expert_ranks() != expert_ranks) {
    return refuse({"open", "placement",
                   std::to_string(config.placement.expert_ranks()) + " expert ranks",
                   std::to_string(expert_ranks), rank,
                   "GroupConfig::expert_ranks and ChannelConfig::placement"});
  }
  return {};
}

// Rows, entries and pairs of one dispatch are counted with 32 bits (route plan, slot header).
Status check_entries(const ChannelConfig& config, std::int32_t rank) {
  constexpr std::uint64_t most = std::uint64_t{1} << 31;
  const std::uint64_t parts = config.placement ? config.placement.max_parts() : 1;
  const std::uint64_t per_token = config.top_k * parts;
  if (config.max_tokens * per_token <= most) return {};
  return refuse(
      {"open", "max_tokens",
       std::to_string(config.max_tokens) + " x top_k " + std::to_string(config.top_k) +
           " x parts of an expert " + std::to_string(parts),
       "at most 2147483648 entries, here max_tokens 1.." + std::to_string(most / per_token), rank,
       "ChannelConfig::max_tokens, top_k or placement"});
}

Status check_types(const ChannelConfig& config, std::int32_t rank) {
  if (!is_float(config.wire)) {
    return refuse(
        {"open", "wire", name(config.wire), "bf16, f16 or f32", rank, "ChannelConfig::wire"});
  }
  if (!is_float(config.output)) {
    return refuse(
        {"open", "output", name(config.output), "bf16, f16 or f32", rank, "ChannelConfig::output"});
  }
  for (std::uint32_t bytes : config.extra_row_bytes) {
    if (bytes == 0 || bytes > (1u << 24)) {
      return refuse({"open", "extra_row_bytes", std::to_string(bytes), "1..16777216", rank,
                     "ChannelConfig::extra_row_bytes"});
    }
  }
  return {};
}

}  // namespace

Status check_config(const ChannelConfig& config, std::uint32_t expert_ranks, std::int32_t rank) {
  const Limit limits[] = {
      {"experts", config.experts, 1, 1u << 20},
      {"top_k", config.top_k, 1, 128},
      {"top_k", config.top_k, 1, config.experts},
      {"hidden", config.hidden, 1, 1u << 24},
      {"max_tokens", config.max_tokens, 1, 1u << 24},
      {"depth", config.depth, 1, 16},
      {"name", config.name.size(), 1, longest_name},
      {"extra_row_bytes", config.extra_row_bytes.size(), 0, 16},
      {"packed_alignment", config.packed_alignment, 1, 1u << 20},
      {"payload", static_cast<std::uint64_t>(config.payload), 0, 5},
      {"layout", static_cast<std::uint64_t>(config.layout), 0, 2},
      {"combine", static_cast<std::uint64_t>(config.combine), 0, 1},
      {"weights", static_cast<std::uint64_t>(config.weights), 0, 1},
      {"presence", static_cast<std::uint64_t>(config.presence), 0, 1},
      {"exchange", static_cast<std::uint64_t>(config.exchange), 0, 2},
      {"replica_choice", static_cast<std::uint64_t>(config.replica_choice), 0, 1},
      {"shard_count", config.shard_count, 1, 1u << 20},
      {"shard_index", config.shard_index, 0, config.shard_count - 1},
  };
  if (Status status = check_limits("open", "ChannelConfig", limits, rank); !status) return status;
  if (Status status = check_types(config, rank); !status) return status;
  if (Status status = check_entries(config, rank); !status) return status;
  return check_placement(config, expert_ranks, rank);
}

Status check_config(const GroupConfig& config) {
  const std::uint64_t attention =
      config.attention_rank < 0 ? 0 : static_cast<std::uint64_t>(config.attention_rank);
  const std::uint64_t expert =
      config.expert_rank < 0 ? 0 : static_cast<std::uint64_t>(config.expert_rank);
  const Limit limits[] = {
      {"attention_ranks", config.attention_ranks, 1, 65536},
      {"expert_ranks", config.expert_ranks, 1, 65536},
      {"world_size", config.world_size, 1, 131072},
      {"world_rank", config.world_rank, 0, config.world_size - 1ull},
      {"attention_rank", attention, 0, config.attention_ranks - 1ull},
      {"expert_rank", expert, 0, config.expert_ranks - 1ull},
      {"workers", config.workers, 1, 1024},
      {"name", config.name.size(), 1, longest_name},
  };
  const auto rank = static_cast<std::int32_t>(config.world_rank);
  constexpr std::chrono::milliseconds longest{std::chrono::hours{24 * 365}};
  if (config.start_timeout < config.start_timeout.zero() ||
      config.step_timeout < config.step_timeout.zero() || config.start_timeout > longest ||
      config.step_timeout > longest) {
    return refuse({"create", "start_timeout, step_timeout",
                   std::to_string(config.start_timeout.count()) + ", " +
                       std::to_string(config.step_timeout.count()) + " ms",
                   "0 to a year", rank, "GroupConfig::start_timeout and step_timeout"});
  }
  if (Status status = check_limits("create", "GroupConfig", limits, rank); !status) return status;
  for (const auto& [field, role] : {std::pair{"attention_rank", config.attention_rank},
                                    std::pair{"expert_rank", config.expert_rank}}) {
    if (role >= -1) continue;
    return refuse({"create", field, std::to_string(role), "-1 for none, or 0 and more", rank,
                   std::string{"GroupConfig::"} + field});
  }
  if (config.attention_rank < 0 && config.expert_rank < 0) {
    return refuse({"create", "roles", "none", "attention_rank or expert_rank (or both)", rank,
                   "GroupConfig::attention_rank and expert_rank"});
  }
  return {};
}

}  // namespace m2n::collectives
