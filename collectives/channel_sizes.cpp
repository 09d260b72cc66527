// channel_sizes: what a channel costs, before anything is opened. The layouts say what windows
// need; what the constructors of the ends allocate is written down here a second time, and a test
// counts the real bytes.
#include <algorithm>
#include <string>

#include "collectives/arena.hpp"
#include "collectives/channel_impl.hpp"
#include "collectives/checked.hpp"
#include "collectives/layout.hpp"
#include "collectives/reply_slot.hpp"
#include "collectives/store_choice.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

// Of one token at one rank, and of one channel.
struct Shape {
  std::uint32_t attention_ranks = 0;
  std::uint32_t expert_ranks = 0;
  std::uint32_t local_experts = 0;  // the most of any expert rank
  std::size_t entries = 0;          // (k, part) of one token
  std::size_t pairs = 0;            // distinct local experts of one token
  std::size_t ranks = 0;            // expert ranks of one token
};

Shape shape_of(const ChannelConfig& config, std::uint32_t attention_ranks,
               std::uint32_t expert_ranks) {
  Shape shape{attention_ranks, expert_ranks};
  for (std::uint32_t rank = 0; rank < expert_ranks; ++rank)
    shape.local_experts = std::max(shape.local_experts, config.placement.local_experts(rank));
  shape.entries = std::size_t{config.top_k} * config.placement.max_parts();
  shape.pairs = std::min<std::size_t>(shape.entries, shape.local_experts);
  shape.ranks = std::min<std::size_t>(shape.entries, expert_ranks);
  return shape;
}

// Objects and lists of one end's links.
std::size_t link_bytes(Checked& size, const ChannelConfig& config, std::uint32_t peers) {
  constexpr std::size_t slot_lists = 4 * sizeof(std::uint64_t);
  constexpr std::size_t per_peer = sizeof(PairLink) + sizeof(PairDrain) + sizeof(PeerStatistics) +
                                   sizeof(Ledger) + sizeof(StoreChoice) + 4 * sizeof(std::uint64_t);
  return size.multiply(peers, per_peer + config.depth * slot_lists);
}

// One RoutePlan per operation in flight.
std::size_t attention_host_bytes(Checked& size, const ChannelConfig& config, const Shape& shape) {
  constexpr std::size_t resolved = 20;  // RoutePlan::Resolved
  constexpr std::size_t peer = 32;      // AttentionEnd::Peer
  constexpr std::size_t per_entry = sizeof(Entry) + resolved + sizeof(Contribution);
  const std::size_t per_token =
      size.add(size.multiply(shape.entries, per_entry),
               size.add(size.multiply(shape.ranks, sizeof(RowInfo)), 2 * sizeof(std::uint32_t)));
  const std::size_t per_expert = config.placement.replicated() ? 24 : 16;
  const std::size_t per_rank =
      2 * sizeof(RankRoute) + sizeof(RowInfo) + sizeof(std::uint64_t) + peer;
  std::size_t plan = size.multiply(config.max_tokens, per_token);
  plan = size.add(plan, size.multiply(config.experts, per_expert));
  plan = size.add(plan, size.multiply(shape.expert_ranks, per_rank));
  const std::size_t plans = config.presence == Presence::every ? config.depth : 2 * config.depth;
  std::size_t host = size.multiply(plan, plans);
  host = size.add(host, size.multiply(config.experts, sizeof(std::uint64_t)));
  host = size.add(host, size.multiply(shape.entries, sizeof(void*) + sizeof(float)));
  return size.add(host, link_bytes(size, config, shape.expert_ranks));
}

// Batches that may be held, and the pairs of every round that may be in one.
std::size_t expert_host_bytes(Checked& size, const ChannelConfig& config, const Shape& shape,
                              std::size_t grouped_rows) {
  const bool grouped = config.layout != Layout::rows;
  const std::size_t rounds = size.multiply(shape.attention_ranks, config.depth);
  const std::size_t batches = config.presence == Presence::every ? config.depth : rounds;
  std::size_t batch = size.multiply(
      shape.attention_ranks, sizeof(BatchSource) + sizeof(std::uint64_t) + sizeof(ReplySlot));
  batch = size.add(batch, sizeof(BatchState));
  if (grouped) {
    batch = size.add(
        batch, size.multiply(shape.local_experts, sizeof(std::uint32_t) + 2 * sizeof(std::size_t)));
    batch = size.add(batch, size.multiply(grouped_rows, 2 * sizeof(std::uint32_t)));
  }
  const std::size_t per_pair = sizeof(Pair) + (grouped ? sizeof(std::uint32_t) : 0);
  std::size_t round = size.multiply(size.multiply(config.max_tokens, shape.pairs), per_pair);
  if (config.exchange != ExchangeKind::push) {
    round = size.add(round, size.multiply(config.max_tokens, sizeof(std::uint32_t)));
    round = size.add(round, sizeof(std::vector<std::uint32_t>));
  }
  round = size.add(round, (grouped ? 2 : 1) * sizeof(std::vector<Pair>));
  std::size_t host = size.add(size.multiply(batches, batch), size.multiply(rounds, round));
  host = size.add(host, size.multiply(shape.local_experts, 2 * sizeof(std::uint64_t)));
  host = size.add(host, size.multiply(shape.entries, sizeof(void*) + 2 * sizeof(float)));
  return size.add(host, link_bytes(size, config, shape.attention_ranks));
}

Status too_large() {
  return transport::refuse(
      {"channel_sizes", "memory of one rank", "more than 2^64 bytes", "what std::size_t holds", -1,
       "ChannelConfig::max_tokens, hidden or depth"},
      Code::exhausted);
}

Result<ChannelSizes> sizes_of(const ChannelConfig& config, const Shape& shape) {
  Result<RowGeometry> row = row_geometry(config);
  if (!row) return row.status();
  Result<WindowLayout> out = dispatch_window(config, shape.expert_ranks);
  if (!out) return out.status();
  Result<WindowLayout> back = reply_window(config, shape.attention_ranks, shape.local_experts);
  if (!back) return back.status();
  GroupedLayout grouped;
  if (config.layout != Layout::rows) {
    Result<GroupedLayout> layout =
        grouped_layout(config, shape.attention_ranks, shape.local_experts);
    if (!layout) return layout.status();
    grouped = *layout;
  }
  Checked size;
  ChannelSizes sizes;
  sizes.row_bytes = row->stride_bytes;
  sizes.reply_row_bytes = back->row_bytes;
  sizes.dispatch_slot_bytes = out->slot_bytes;
  sizes.reply_slot_bytes = back->slot_bytes;
  sizes.attention_window_bytes = size.multiply(back->window_bytes(), shape.expert_ranks);
  sizes.expert_window_bytes = size.multiply(out->window_bytes(), shape.attention_ranks);
  sizes.attention_staging_bytes = size.multiply(out->window_bytes(), shape.expert_ranks);
  sizes.expert_staging_bytes = size.multiply(back->window_bytes(), shape.attention_ranks);
  if (config.exchange != ExchangeKind::push)
    sizes.arena_bytes = size.multiply(arena_rows(config, row->stride_bytes), row->stride_bytes);
  sizes.attention_host_bytes = attention_host_bytes(size, config, shape);
  sizes.expert_host_bytes = expert_host_bytes(size, config, shape, grouped.rows);
  sizes.grouped_bytes = size.multiply(size.align(grouped.bytes, 4096),
                                      config.presence == Presence::every
                                          ? config.depth
                                          : size.multiply(config.depth, shape.attention_ranks));
  sizes.attention_bytes = size.add(size.add(sizes.attention_window_bytes, sizes.arena_bytes),
                                   sizes.attention_host_bytes);
  sizes.expert_bytes = size.add(sizes.expert_window_bytes, sizes.expert_host_bytes);
  if (size.overflow()) return too_large();
  const std::uint32_t peers = std::max(shape.attention_ranks, shape.expert_ranks);
  sizes.connections = peers;
  // A window each, the peer's while it is mapped, a process handle.
  sizes.descriptors = 3 * peers + 1;
  sizes.signal_words = peers * (config.depth + control_ring + 1);
  return sizes;
}

}  // namespace
}  // namespace m2n::collectives

namespace m2n {

Result<ChannelSizes> channel_sizes(const ChannelConfig& config, std::uint32_t attention_ranks,
                                   std::uint32_t expert_ranks) {
  if (attention_ranks == 0 || expert_ranks == 0 || attention_ranks > 65536 ||
      expert_ranks > 65536) {
    return transport::refuse({"channel_sizes", "ranks",
                              std::to_string(attention_ranks) + "x" + std::to_string(expert_ranks),
                              "1x1 to 65536x65536", -1,
                              "GroupConfig::attention_ranks and expert_ranks"});
  }
  ChannelConfig full = config;
  if (Status status = collectives::check_config(full, expert_ranks, -1); !status) return status;
  if (!full.placement) full.placement = Placement::block(full.experts, expert_ranks);
  return collectives::sizes_of(full, collectives::shape_of(full, attention_ranks, expert_ranks));
}

}  // namespace m2n
