// shared_exchange, the sender's side: rows lie in the arena, written once or where x was produced,
// and receivers get row numbers.
#include "collectives/arena.hpp"

#include <algorithm>
#include <string>

#include "collectives/attention_end.hpp"
#include "collectives/layout.hpp"
#include "collectives/slot.hpp"
#include "collectives/wait.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

std::size_t arena_rows(const ChannelConfig& config, std::size_t stride_bytes) noexcept {
  const std::size_t in_flight = std::size_t{2} * config.depth * config.max_tokens;
  return std::min<std::size_t>(std::max(in_flight, rotation_bytes / stride_bytes), 0xffff'fff0u);
}

AttentionEnd::~AttentionEnd() {
  if (arena_.ring) worker_.transport().drop_memory(arena_.memory);
}

bool AttentionEnd::wants_arena() const noexcept {
  const ExchangeKind exchange = context_.config.exchange;
  return exchange == ExchangeKind::shared ||
         (exchange == ExchangeKind::automatic && worker_.transport().capabilities().mapped);
}

Result<transport::Blob> AttentionEnd::make_arena() {
  transport::Transport& transport = worker_.transport();
  if (!transport.capabilities().mapped) {
    return transport::refuse({"open", "exchange", "shared over " + std::string{transport.name()},
                              "push, or a transport that maps memory", context_.rank(),
                              "ChannelConfig::exchange"});
  }
  arena_.stride_bytes = context_.row_format.stride_bytes;
  arena_.rows = static_cast<std::uint32_t>(arena_rows(context_.config, arena_.stride_bytes));
  const std::size_t bytes = arena_.rows * arena_.stride_bytes;
  Result<transport::MemoryId> memory =
      transport.add_memory({nullptr, bytes, context_.group->config.huge_pages});
  if (!memory) return memory.status();
  arena_.memory = *memory;
  arena_.base = transport.local(*memory);
  arena_.ring = std::make_unique<ArenaRing>(arena_.rows, 4 * context_.config.depth + 4);
  return transport.export_memory(*memory);
}

void AttentionEnd::seal_arena() noexcept {
  if (arena_.ring) worker_.transport().seal_memory(arena_.memory);
}

Result<ArenaBlock> AttentionEnd::arena_acquire(std::uint32_t tokens) {
  if (!arena_.ring) {
    const bool push = context_.config.exchange == ExchangeKind::push;
    return transport::refuse({"arena_acquire", "exchange",
                              push ? "push" : "automatic over memory that is not shared",
                              "shared, or automatic where peers share memory", context_.rank(),
                              "ChannelConfig::exchange"});
  }
  if (tokens > context_.config.max_tokens) {
    return transport::refuse({"arena_acquire", "tokens", std::to_string(tokens),
                              "0.." + std::to_string(context_.config.max_tokens), context_.rank(),
                              "ChannelConfig::max_tokens"});
  }
  reap();
  for (Operation& operation : operations_) {
    if (operation.state != OperationState::free && rows_read(operation)) free_block(operation);
  }
  const std::uint32_t row = arena_.ring->acquire(std::max(tokens, 1u));
  if (row == ArenaRing::none) {
    return transport::refuse(
        {"arena_acquire", "rows in use", "all that fit", "fewer: dispatch and combine first",
         context_.rank(), "ChannelConfig::depth"},
        Code::exhausted);
  }
  return ArenaBlock{arena_.base + row * arena_.stride_bytes, arena_.stride_bytes, tokens};
}

Status AttentionEnd::arena_release(const ArenaBlock& block) {
  const std::uint32_t row = arena_.ring ? arena_.row_of(block.base) : ArenaRing::none;
  if (row != ArenaRing::none && arena_.ring->give_back(row)) return {};
  return transport::refuse(
      {"arena_release", "block",
       row == ArenaRing::none ? "not of this channel's arena" : "dispatched or given back before",
       "what arena_acquire gave", context_.rank(), "Channel::arena_acquire"});
}

// All arrays of a row where Channel::row_format() says, at the arena's stride.
bool AttentionEnd::lies_as_in_arena(const Dispatch& arguments) const noexcept {
  const auto stride_of = [](const ConstRows& rows, std::size_t bytes) {
    return rows.row_stride_bytes != 0 ? rows.row_stride_bytes : bytes;
  };
  const auto* base = static_cast<const std::byte*>(arguments.x.base);
  if (stride_of(arguments.x, context_.row_sizes[0]) != arena_.stride_bytes) return false;
  for (std::size_t i = 0; i < arguments.extra.size(); ++i) {
    const ConstRows& extra = arguments.extra[i];
    if (extra.base != base + context_.row_offsets[i + 1] ||
        stride_of(extra, context_.row_sizes[i + 1]) != arena_.stride_bytes) {
      return false;
    }
  }
  return true;
}

// Finds the block that x lies in, or copies x into a new one, unless pushing its rows costs less.
Status AttentionEnd::place_in_arena(Operation& operation, const Dispatch& arguments) {
  operation.block = ArenaRing::none;
  if (!arena_.ring) return {};
  const std::uint32_t row = arena_.row_of(arguments.x.base);
  if (row != ArenaRing::none && operation.first != operation.last && lies_as_in_arena(arguments)) {
    operation.block = arena_.ring->use(row, arguments.tokens);
    operation.arena_row = row;
    if (operation.block != ArenaRing::none) return {};
  }
  Status copied;
  const bool shared = context_.config.exchange == ExchangeKind::shared;
  if (operation.first != operation.last &&
      (shared ||
       exchange_choice_.copy_once(operation.last - operation.first, operation.plan.rows()))) {
    copied = copy_to_arena(operation, arguments);
    if (!copied && shared) return copied;  // else its rows are pushed
  }
  // x lay there, but not as receivers read it.
  if (row != ArenaRing::none) arena_.ring->give_back(row);
  return {};
}

Status AttentionEnd::copy_to_arena(Operation& operation, const Dispatch& arguments) {
  Result<ArenaBlock> block = arena_acquire(arguments.tokens);
  if (!block) return block.status();
  operation.arena_row = arena_.row_of(block->base);
  operation.block = arena_.ring->use(operation.arena_row, arguments.tokens);
  const Clock::time_point begin = Clock::now();
  for (std::uint32_t token = operation.first; token < operation.last; ++token) {
    const RowInfo one{token, 0};
    copy_rows(block->base + token * arena_.stride_bytes, {&one, 1}, arguments);
  }
  const std::chrono::nanoseconds took = Clock::now() - begin;
  exchange_choice_.copied(operation.last - operation.first,
                          static_cast<std::uint64_t>(took.count()));
  return {};
}

void AttentionEnd::write_index(std::byte* to, const Operation& operation,
                               std::span<const RowInfo> rows) const {
  auto* index = reinterpret_cast<std::uint32_t*>(to);
  for (std::size_t i = 0; i < rows.size(); ++i) index[i] = operation.arena_row + rows[i].token;
}

// Every receiver has copied this operation's rows, or has replied, which comes later.
bool AttentionEnd::rows_read(const Operation& operation) const {
  if (operation.block == ArenaRing::none) return true;
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    const Peer& peer = operation.peers[rank];
    if (!peer.touched || operation.plan.rank(rank).rows == 0) continue;
    const PairLink& link = *links_[rank];
    if (!link.gathered(peer.round) && !link.complete(peer.round) && link.health()) return false;
  }
  return true;
}

void AttentionEnd::free_block(Operation& operation) noexcept {
  if (operation.block == ArenaRing::none) return;
  arena_.ring->release(operation.block);
  operation.block = ArenaRing::none;
}

}  // namespace m2n::collectives
