// Configuration of a group and of a channel. Fields marked [all] must be equal on every rank; the
// others are local. A difference fails on all ranks with the field, the rank and both values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "m2n/export.hpp"
#include "m2n/log.hpp"
#include "m2n/placement.hpp"
#include "m2n/status.hpp"
#include "m2n/types.hpp"

namespace m2n {

struct GroupConfig {
  std::string name = "m2n";           // [all] two groups over one store need two names
  std::uint32_t attention_ranks = 1;  // [all] M
  std::uint32_t expert_ranks = 1;     // [all] N
  std::uint32_t world_size = 2;       // [all] processes (or threads) in the group
  std::uint32_t world_rank = 0;       // unique, 0..world_size-1
  std::int32_t attention_rank = -1;   // 0..M-1 if this rank has the role attention, else -1
  std::int32_t expert_rank = -1;      // 0..N-1 if this rank has the role expert, else -1
  std::string transport = "auto";     // [all] auto | inproc | shm
  std::uint32_t workers = 1;          // threads of this rank that will own channel ends
  Wait wait = Wait::automatic;
  bool huge_pages = false;  // ask for huge pages in windows; used where the system allows it
  // 0 = take M2N_START_TIMEOUT_MS / M2N_STEP_TIMEOUT_MS, else 60 s / 30 s. Start-up covers create,
  // open and the first operation of a channel.
  std::chrono::milliseconds start_timeout{0};
  std::chrono::milliseconds step_timeout{0};
  LogCallback log;  // empty = stderr, from M2N_LOG (default warn)

  // World ranks 0..M-1 are the attention ranks, the next N the expert ranks.
  static GroupConfig split(std::uint32_t attention, std::uint32_t expert,
                           std::uint32_t world_rank) {
    GroupConfig config;
    config.attention_ranks = attention;
    config.expert_ranks = expert;
    config.world_size = attention + expert;
    config.world_rank = world_rank;
    if (world_rank < attention) {
      config.attention_rank = static_cast<std::int32_t>(world_rank);
    } else {
      config.expert_rank = static_cast<std::int32_t>(world_rank - attention);
    }
    return config;
  }

  // Every rank has both roles (classic expert parallelism).
  static GroupConfig both(std::uint32_t ranks, std::uint32_t world_rank) {
    GroupConfig config;
    config.attention_ranks = config.expert_ranks = config.world_size = ranks;
    config.world_rank = world_rank;
    config.attention_rank = config.expert_rank = static_cast<std::int32_t>(world_rank);
    return config;
  }
};

struct ChannelConfig {
  std::string name = "main";     // [all] unique in the group
  Phase phase = Phase::decode;   // [all]
  std::uint32_t experts = 1;     // [all] E, 1..1'048'576
  std::uint32_t top_k = 1;       // [all] K, 1..128 and <= E
  std::uint32_t hidden = 0;      // [all] H, elements of a token's hidden vector, >= 1
  std::uint32_t max_tokens = 0;  // [all] tokens of one dispatch at one attention rank, >= 1
  std::uint32_t depth = 2;       // [all] operations in flight, 1..16
  DataType payload =
      DataType::bf16;  // [all] of the hidden vector on its way to the experts; opaque
  std::vector<std::uint32_t>
      extra_row_bytes;                 // [all] further opaque arrays per token (scales), bytes each
  DataType wire = DataType::bf16;      // [all] of expert outputs y and of replies: bf16, f16 or f32
  DataType output = DataType::bf16;    // [all] of combine's result and addend: bf16, f16 or f32
  Combine combine = Combine::reduced;  // [all]
  Weights weights = Weights::library;  // [all]
  Presence presence = Presence::every;                     // [all]
  ExchangeKind exchange = ExchangeKind::automatic;         // [all]
  ReplicaChoice replica_choice = ReplicaChoice::balanced;  // [all]
  Placement placement;                                     // [all] empty = Placement::block(E, N)
  Layout layout = Layout::rows;                            // of this expert rank's batches
  std::uint32_t capacity = 0;          // grouped: rows per local expert; 0 = cannot overflow
  std::uint32_t packed_alignment = 1;  // packed: rows; every expert starts at a multiple
  bool across_layers = false;          // touched: one batch may hold several (layer, phase)
  // Tensor-parallel attention ranks that hold the same tokens: this rank sends and combines tokens
  // [T index / count, T (index + 1) / count) only.
  std::uint32_t shard_index = 0;
  std::uint32_t shard_count = 1;
};

// What a channel costs one attention rank and one expert rank, for given M and N. Bytes of a role
// are the most of any of its ranks; a rank with both roles pays for both. The placement, which
// channels may share, is not counted.
struct ChannelSizes {
  std::size_t row_bytes = 0;            // one payload row in a slot, all arrays, padded
  std::size_t reply_row_bytes = 0;      // one reply row in a slot, padded
  std::size_t dispatch_slot_bytes = 0;  // one (pair, round) on the way to an expert rank
  std::size_t reply_slot_bytes = 0;     // one (pair, round) on the way back
  // Allocated while the channel opens: windows, arena and host bytes.
  std::size_t attention_bytes = 0;
  std::size_t expert_bytes = 0;
  // Of these, registered with the transport: N pairs x depth reply slots, M pairs x depth dispatch
  // slots.
  std::size_t attention_window_bytes = 0;
  std::size_t expert_window_bytes = 0;
  std::size_t arena_bytes = 0;  // registered by an attention rank: rows of a shared exchange
  // Plans, ledgers, pair lists and the like.
  std::size_t attention_host_bytes = 0;
  std::size_t expert_host_bytes = 0;
  // In addition, over a transport that does not map peers' memory: what puts are made from.
  std::size_t attention_staging_bytes = 0;
  std::size_t expert_staging_bytes = 0;
  // In addition, grouped and packed: address space for the batches an expert rank may hold. Pages
  // come as rows do, and none where the caller gives ReceivePolicy::buffer.
  std::size_t grouped_bytes = 0;
  std::uint32_t connections = 0;   // of the busier role
  std::uint32_t descriptors = 0;   // file descriptors of the busier role while the channel opens
  std::uint32_t signal_words = 0;  // of the busier role
};

// `invalid` if the configuration is, `exhausted` if a size does not fit std::size_t.
M2N_EXPORT Result<ChannelSizes> channel_sizes(const ChannelConfig& config,
                                              std::uint32_t attention_ranks,
                                              std::uint32_t expert_ranks);

}  // namespace m2n
