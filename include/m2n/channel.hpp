// One phase's private lane through a group: dispatch and combine at attention ranks, receive and
// reply at expert ranks. Ends (dispatch, combine, ... | receive, reply, ...) belong to the worker
// they were opened with and are used by one thread at a time; abort() may come from any thread.
// docs/threads.md has the table.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "m2n/batch.hpp"
#include "m2n/config.hpp"
#include "m2n/export.hpp"
#include "m2n/status.hpp"
#include "m2n/types.hpp"

namespace m2n {

// Proof of one dispatch, to be combined once. Move-only. Dropping it abandons the operation: its
// slots become free when the late replies are in.
class M2N_EXPORT Ticket {
 public:
  Ticket() noexcept = default;
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();
  explicit operator bool() const noexcept { return channel_ != nullptr; }
  // Number of the operation on its channel at this rank, from 0.
  std::uint64_t operation() const noexcept { return operation_; }

 private:
  friend struct ChannelImpl;
  Ticket(std::shared_ptr<ChannelImpl> channel, std::uint64_t operation) noexcept;
  std::shared_ptr<ChannelImpl> channel_;
  std::uint64_t operation_ = 0;
};

// Arguments of dispatch.
struct Dispatch {
  std::uint32_t tokens = 0;            // T, 0..max_tokens
  ConstRows x;                         // [T, hidden] of the payload type
  std::span<const ConstRows> extra{};  // per extra row array: [T, its bytes]
  ExpertIds ids;                       // [T, top_k]
  RoutingWeights weights;              // [T, top_k]
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
};

// Expert outputs y: row j of the wire type, [hidden], at base + (index ? index[j] : j) *
// row_stride_bytes.
struct Outputs {
  const void* base = nullptr;
  std::size_t row_stride_bytes = 0;  // 0 = hidden elements of the wire type
  const std::uint32_t* index = nullptr;
};

// What a receive waits for on an aggregating channel; a lockstep one takes every live source.
struct ReceivePolicy {
  // Sources of the batch's layer (with across_layers: of any). The batch is that of the source that
  // has waited longest, and it does not wait for sources that cannot join it: those that wait with
  // another layer, or have closed.
  std::uint32_t min_sources = 1;
  std::chrono::nanoseconds max_wait{0};  // of that source; then fewer are enough
  // grouped and packed: memory for the rows, else the channel's own. Aligned to 64 bytes.
  std::span<std::byte> buffer{};
  // grouped and packed: give this batch as rows instead (after `exhausted`, which has taken
  // nothing).
  bool as_rows = false;
  // Rows only: the batch is given as soon as every source's row information is there, while rows
  // are still on their way (mapped pairs; others give whole rounds). A rank that sleeps or polls
  // an event descriptor is woken by pieces most of the time, by the end for certain. rows_ready and
  // await_rows tell how far they are, reply_rows answers them piece by piece.
  bool early = false;
};

// How a payload row lies in a batch: offsets_bytes[0] = hidden vector, then the extra arrays.
struct RowFormat {
  std::span<const std::size_t> offsets_bytes;
  std::span<const std::size_t> sizes_bytes;
  std::size_t stride_bytes = 0;
};

// Rows for x inside the channel's arena: dispatched from there without a copy.
struct ArenaBlock {
  std::byte* base = nullptr;  // [tokens] rows of RowFormat
  std::size_t row_stride_bytes = 0;
  std::uint32_t tokens = 0;
};

struct PeerStatistics {
  std::uint64_t rounds = 0;  // exchanged with this peer
  // Time this rank spent blocked in receive, combine, serve or receive_any on this peer as the last
  // one missing; without the time that serve spent in the expert function.
  std::uint64_t wait_ns = 0;
};

// Counted since the channel was opened, by one end each.
struct Statistics {
  std::uint64_t operations = 0;
  std::uint64_t tokens = 0;
  std::uint64_t rows = 0;  // payload rows sent (attention) or received (expert)
  // Dispatched headers, row information and rows (or their index) that really travelled: sent
  // (attention) or received in batches (expert), so that both roles' sums over all ranks are equal.
  std::uint64_t wire_bytes = 0;
  std::uint64_t reply_bytes = 0;    // expert: headers and rows of the replies that it sent
  std::uint64_t logical_bytes = 0;  // payload rows before de-duplication: one per (token, expert)
  std::uint64_t abandoned = 0;      // dropped tickets or batches
  std::span<const std::uint64_t> expert_rows;  // attention: per expert; expert: per local expert
  std::span<const PeerStatistics> peers;       // by the peer's role rank
};

// Computes a batch and replies to it; used by serve().
using ExpertFunction = std::function<Status(class Channel&, Batch&)>;

struct OpenOptions {
  std::uint32_t attention_worker = 0;
  std::uint32_t expert_worker = 0;
  ExpertFunction expert_function{};  // needed by serve()
};

// A cheap handle; copies name the same channel. All verbs return `invalid` on a rank without the
// role, `closed` after close() and `aborted` after abort().
class M2N_EXPORT Channel {
 public:
  Channel() = default;
  explicit operator bool() const noexcept { return impl_ != nullptr; }

  // --- attention end -----------------------------------------------------------------------------
  // Sends each token's row once to every expert rank that owns one of its experts. Never waits for
  // a peer: `exhausted` without a credit (combine first). `invalid` changes nothing and uses no
  // operation number. x, extra, ids and weights may be reused when it returns, rows in the arena
  // after input_free.
  Result<Ticket> dispatch(const Dispatch& arguments);

  // Waits for the replies of the ticket's operation and writes out[t] = sum over its experts (+
  // add[t]) for every token, [T, hidden] of the output type; fp32 accumulation in a fixed order,
  // one rounding. ok, or `unavailable` (some experts did not serve; the rest is in out): the ticket
  // is used up. timeout leaves it valid; the next try goes on in the same out and add, or begins
  // anew in others. add may be out itself.
  Status combine(Ticket& ticket, MutableRows out, ConstRows add = {}, Timeout timeout = {});
  // Does what can be done now; `again` when replies are missing.
  Status try_combine(Ticket& ticket, MutableRows out, ConstRows add = {});

  // True when nothing of this operation waits to be handed to the transport.
  Result<bool> issued(const Ticket& ticket);
  // True when the rows of this operation (arena rows too) may be overwritten.
  Result<bool> input_free(const Ticket& ticket);
  // Abandons the operation now, as dropping the ticket does.
  Status cancel(Ticket& ticket);
  // Rows for `tokens` tokens; a ring, so a block lives until its operation's input_free.
  Result<ArenaBlock> arena_acquire(std::uint32_t tokens);
  // Gives a block back that was not dispatched.
  Status arena_release(const ArenaBlock& block);
  // Largest number of pieces any attention rank needs for its `tokens`; collective over the
  // attention ranks. A piece holds at most max_tokens. The start time-out counts until the first
  // dispatch.
  Result<std::uint32_t> agree_pieces(std::uint64_t tokens, Timeout timeout = {});

  // --- expert end --------------------------------------------------------------------------------
  // A round that a peer wrote wrongly, or routed with another placement, is answered `invalid` and
  // told once as `invalid`. In lockstep its operation is over, all others of it are answered
  // unserved; on an aggregating channel only its source is taken, the next receive gives the
  // others.
  Result<Batch> receive(Timeout timeout = {}, const ReceivePolicy& policy = {});
  Result<Batch> try_receive(const ReceivePolicy& policy = {});
  // Layout::rows: one Outputs per source, row j = y of its pairs[j]. Never waits. The batch is used
  // up.
  Status reply(Batch& batch, std::span<const Outputs> per_source);
  // Layout::rows: the same for source `source` alone and its rows below `rows` that have not been
  // replied to; `rows` = all of them ends that source, and the batch is used up when all sources
  // have been ended. A following reply() answers whatever is left. Never waits: `invalid` for rows
  // that are not there yet.
  Status reply_rows(Batch& batch, std::size_t source, std::uint32_t rows, const Outputs& outputs);
  // Waits until the first `rows` rows of a source of an early batch may be read.
  Status await_rows(const Batch& batch, std::size_t source, std::uint32_t rows,
                    Timeout timeout = {});
  // Layout::grouped and packed: y at the rows of the batch's own geometry.
  Status reply(Batch& batch, const Outputs& grouped);

  // --- both --------------------------------------------------------------------------------------
  // A rank with both roles: serves batches with the expert function until the ticket's replies are
  // in.
  Status serve(Ticket& ticket, MutableRows out, ConstRows add = {}, Timeout timeout = {});
  // Pushes what waits in this channel's ends.
  Status progress();
  // Collective: every operation of this channel has been consumed and every peer says so, for the
  // same number of operations. Calls pair up, not successes: one that is ok has used one call of
  // every peer, also one that timed out there, which no earlier one has used. After a time-out: go
  // on, and drain again; once every rank does, all are ok, whatever the calls before came to.
  Status drain(Timeout timeout = {});
  // Local, within a second, from the thread that owns the ends (docs/threads.md): what is in flight
  // ends `cancelled`, peers' waits for this rank end `closed`.
  Status close();
  // From any thread: open calls end `aborted`.
  void abort() noexcept;

  RowFormat row_format() const noexcept;
  const ChannelConfig& config() const noexcept;
  Statistics attention_statistics() const noexcept;
  Statistics expert_statistics() const noexcept;

 private:
  friend class Group;
  friend struct ChannelImpl;
  explicit Channel(std::shared_ptr<ChannelImpl> impl) noexcept : impl_{std::move(impl)} {}
  std::shared_ptr<ChannelImpl> impl_;
};

// The batch of a channel that has one, channels in turn; `index` says which of `channels`. A
// channel whose peers have gone is passed over until all have. All must belong to one worker. A
// time-out names who is missing on each channel.
struct AnyBatch {
  std::size_t index = 0;
  Batch batch;
};
M2N_EXPORT Result<AnyBatch> receive_any(std::span<Channel> channels, Timeout timeout = {},
                                        const ReceivePolicy& policy = {});

// Piece i of n of a batch of `tokens` tokens: [first, first + count). Sizes differ by one at most.
// Behind the last piece there is nothing; a piece of more than 2^32 - 1 tokens says that number,
// which dispatch refuses.
struct Piece {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
};
constexpr Piece piece(std::uint64_t tokens, std::uint32_t index, std::uint32_t pieces) noexcept {
  if (index >= pieces) return {tokens, 0};
  // floor(tokens * i / pieces) without the product.
  const std::uint64_t whole = tokens / pieces;
  const std::uint64_t rest = tokens % pieces;
  const std::uint64_t first = whole * index + rest * index / pieces;
  const std::uint64_t next = whole * (index + 1ull) + rest * (index + 1ull) / pieces;
  const std::uint64_t most = 0xffff'ffffu;
  return {first, static_cast<std::uint32_t>(next - first < most ? next - first : most)};
}

}  // namespace m2n
