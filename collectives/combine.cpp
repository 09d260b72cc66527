// combine: sums what came back, token by token, as far as it has come.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>

#include "collectives/attention_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/row_check.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

using transport::refuse;

namespace {

Status unknown(std::string_view function, std::uint64_t operation, std::int32_t rank) {
  return refuse({function, "ticket",
                 "operation " + std::to_string(operation) + ", which is not open",
                 "a ticket of this channel that has not been combined", rank, "Channel::dispatch"});
}

// What a peer says of its reply, if it can be believed: of this operation, and a known word.
ReplyStatus status_of(const SlotHeader& header, std::uint64_t operation) noexcept {
  // A reply that was begun may still be given up.
  const ReplyStatus status =
      std::atomic_ref{const_cast<ReplyStatus&>(header.status)}.load(std::memory_order_relaxed);
  if (header.operation != operation || status > ReplyStatus::invalid) return ReplyStatus::invalid;
  return status;
}

bool body_fits(std::size_t rows, std::size_t offset, const WindowLayout& layout) noexcept {
  return offset % 64 == 0 && offset >= sizeof(SlotHeader) && offset <= layout.slot_bytes &&
         rows <= layout.max_rows && rows * layout.row_bytes <= layout.slot_bytes - offset;
}

// The compiler may not read it again.
std::size_t load_once(const std::uint64_t& value) noexcept {
  return std::atomic_ref{const_cast<std::uint64_t&>(value)}.load(std::memory_order_relaxed);
}

}  // namespace

Status AttentionEnd::check_combine(const Operation& operation, const MutableRows& out,
                                   const ConstRows& add) const {
  if (operation.first == operation.last) return {};
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.output);
  constexpr std::string_view setting = "ChannelConfig::hidden and output";
  const ConstRows target{out.base, out.row_stride_bytes};
  if (!rows_fit(target, row_bytes)) {
    return explain_rows(target, row_bytes, {"combine", "out", setting, context_.rank()});
  }
  if (add.base == nullptr || rows_fit(add, row_bytes)) return {};
  return explain_rows(add, row_bytes, {"combine", "add", setting, context_.rank()});
}

Status AttentionEnd::try_combine(std::uint64_t number, const MutableRows& out,
                                 const ConstRows& add) {
  Operation* operation = find(number);
  if (operation == nullptr) return unknown("combine", number, context_.rank());
  if (Status status = check_combine(*operation, out, add); !status) return status;
  return advance(*operation, out, add);
}

Status AttentionEnd::combine(std::uint64_t number, const MutableRows& out, const ConstRows& add,
                             Timeout timeout) {
  Operation* operation = find(number);
  if (operation == nullptr) return unknown("combine", number, context_.rank());
  if (Status status = check_combine(*operation, out, add); !status) return status;
  Status status = advance(*operation, out, add);
  if (status.code() != Code::again) return status;
  const GroupCore& group = *context_.group;
  const Deadline deadline{timeout, number == 0 ? group.start_timeout : group.step_timeout};
  status = wait_until(
      worker_, group.wait, deadline,
      [&] {
        if (context_.state.load(std::memory_order_acquire) != ChannelState::open)
          return context_.check("combine");
        return advance(*operation, out, add);
      },
      [&] { pump(); });
  count_wait(Clock::now() - deadline.start());
  return status.code() == Code::timeout ? timed_out("combine", number, "expert") : status;
}

// Sums go on where the last try ended, or begin anew for another target.
void AttentionEnd::aim(Operation& operation, const MutableRows& out,
                       const ConstRows& add) const noexcept {
  if (operation.out.base == out.base && operation.out.row_stride_bytes == out.row_stride_bytes &&
      operation.add.base == add.base && operation.add.row_stride_bytes == add.row_stride_bytes)
    return;
  operation.out = out;
  operation.add = add;
  operation.next = operation.first;
  operation.next_column = 0;
  for (Peer& peer : operation.peers) peer.lines = 0;
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.output);
  const auto end = [&](const void* base, std::size_t stride) {
    return static_cast<const std::byte*>(base) +
           (operation.last - 1) * (stride != 0 ? stride : row_bytes) + row_bytes;
  };
  operation.in_place = add.base != nullptr && operation.first != operation.last &&
                       std::less<>{}(out.base, end(add.base, add.row_stride_bytes)) &&
                       std::less<>{}(add.base, end(out.base, out.row_stride_bytes));
}

Status AttentionEnd::advance(Operation& operation, const MutableRows& out, const ConstRows& add) {
  aim(operation, out, add);
  do {
    if (Status status = sum_tokens(operation, out, add); !status) return status;
    if (Status status = replies_complete(operation); !status) return status;
  } while (given_up(operation));  // then its rows are taken out again
  Status status = operation.any_failed ? unavailable(operation) : Status{};
  release(operation);
  return status;
}

// Sums what has come: whole tokens, and the first columns of one whose rows are still being
// written.
Status AttentionEnd::sum_tokens(Operation& operation, const MutableRows& out,
                                const ConstRows& add) {
  const ChannelConfig& config = context_.config;
  const std::size_t out_bytes = size_of(config.output);
  const std::size_t row_bytes = config.hidden * out_bytes;
  const std::size_t out_stride = out.row_stride_bytes != 0 ? out.row_stride_bytes : row_bytes;
  const std::size_t add_stride = add.row_stride_bytes != 0 ? add.row_stride_bytes : row_bytes;
  transport::SumRow row;
  row.rows = row_pointers_.data();
  row.weights = row_weights_.data();
  row.streaming = operation.streaming;
  for (; operation.next < operation.last; ++operation.next, operation.next_column = 0) {
    const std::uint32_t columns = gather(operation, operation.next, row.count);
    if (columns > operation.next_column) {
      const std::size_t first = operation.next_column * out_bytes;
      row.columns = columns - operation.next_column;
      row.out = static_cast<std::byte*>(out.base) + operation.next * out_stride + first;
      if (add.base != nullptr)
        row.addend = static_cast<const std::byte*>(add.base) + operation.next * add_stride + first;
      sum_(row);
      operation.next_column = columns;
    }
    if (columns < config.hidden)
      return peer_closed_[missing_] ? closed_by_peer("combine") : check_missing("combine");
  }
  if (operation.streaming) transport::row_kernels().fence_streaming();
  return {};
}

// Collects the reply rows of a token from its next column on; returns the column up to which all of
// them may be read. Blames a peer whose row is not complete.
std::uint32_t AttentionEnd::gather(Operation& operation, std::uint32_t token,
                                   std::uint32_t& count) {
  const std::size_t wire_bytes = size_of(context_.config.wire);
  std::uint32_t columns = context_.config.hidden;
  count = 0;
  for (const Contribution& contribution : operation.plan.contributions(token)) {
    Peer& peer = operation.peers[contribution.rank];
    const std::size_t row_bytes = links_[contribution.rank]->in().row_bytes;
    const std::size_t begin = contribution.row * row_bytes;
    if (peer.lines * std::size_t{64} < begin + row_bytes) look(operation, contribution.rank);
    const std::size_t ready = peer.lines * std::size_t{64};
    if (ready < begin + row_bytes) {
      blame(contribution.rank);
      columns = std::min(
          columns, ready <= begin ? 0 : static_cast<std::uint32_t>((ready - begin) / wire_bytes));
    }
    if (peer.failed || peer.rows == nullptr) continue;
    row_pointers_[count] = peer.rows + begin + operation.next_column * wire_bytes;
    row_weights_[count++] = contribution.weight;
  }
  return columns;
}

// Looks how far a peer's reply has come. What is checked is what is used: the peer may change it.
void AttentionEnd::look(Operation& operation, std::uint32_t rank) {
  Peer& peer = operation.peers[rank];
  const PairLink& link = *links_[rank];
  const PairLink::Arrived arrived = link.arrived(peer.round);
  if (!arrived.header) return;
  // A reply may be given up until it is complete. What was added in place cannot be taken out.
  if (operation.in_place && arrived.lines != PairLink::all_lines) return;
  peer.lines = arrived.lines;
  if (peer.rows != nullptr || peer.failed) return;
  at({HookPoint::flag_seen_pre_read, context_.group->config.world_rank, rank, peer.round,
      link.slot(peer.round), link.in().slot_bytes});
  const SlotHeader& header = link.header(peer.round);
  const RankRoute& route = operation.plan.rank(rank);
  const std::uint32_t expected =
      context_.config.combine == Combine::reduced ? route.rows : route.pairs;
  const std::uint32_t rows = header.rows;
  const std::size_t offset = load_once(header.body_offset);
  peer.why = status_of(header, operation.number);
  if (peer.why == ReplyStatus::ok && (rows != expected || !body_fits(rows, offset, link.in())))
    peer.why = ReplyStatus::invalid;
  if (peer.why != ReplyStatus::ok) {
    peer.failed = operation.any_failed = true;
  } else {
    peer.rows = link.slot(peer.round) + offset;
  }
}

// ok once every reply is in, so that the slots may be used again.
Status AttentionEnd::replies_complete(Operation& operation) {
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    Peer& peer = operation.peers[rank];
    if (!peer.touched || links_[rank]->complete(peer.round)) continue;
    blame(rank);
    return peer_closed_[rank] ? closed_by_peer("combine") : check_missing("combine");
  }
  return {};
}

// Replies that were begun and then given up: their rows count for nothing, and the sums begin anew
// without them.
bool AttentionEnd::given_up(Operation& operation) {
  bool any = false;
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    Peer& peer = operation.peers[rank];
    if (!peer.touched || peer.failed) continue;
    const ReplyStatus why = status_of(links_[rank]->header(peer.round), operation.number);
    if (why == ReplyStatus::ok || operation.plan.rank(rank).rows == 0) continue;
    any |= peer.rows != nullptr;
    operation.any_failed = peer.failed = true;
    peer.why = why;
  }
  operation.next = any ? operation.first : operation.next;
  return any;
}

void AttentionEnd::release(Operation& operation) {
  at({HookPoint::pre_ack, context_.group->config.world_rank, 0, operation.number});
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    if (operation.peers[rank].touched) ledgers_[rank].finish(operation.peers[rank].round);
  }
  free_block(operation);
  operation.state = OperationState::free;
}

Status AttentionEnd::unavailable(const Operation& operation) const {
  constexpr const char* names[] = {"ok", "unserved", "stale", "invalid"};
  std::string text = "combine: operation " + std::to_string(operation.number) + ": ";
  std::int32_t first_peer = -1;
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    const Peer& peer = operation.peers[rank];
    if (!peer.failed) continue;
    const auto world = static_cast<std::int32_t>(links_[rank]->peer_rank());
    if (first_peer >= 0) text += "; ";
    if (first_peer < 0) first_peer = world;
    text.append("expert rank ").append(std::to_string(rank)).append(" (world rank ");
    text.append(std::to_string(world))
        .append(") answered ")
        .append(names[static_cast<int>(peer.why)]);
    text.append(", tokens without it:");
    for (const RowInfo& row : operation.plan.row_info(rank).first(operation.plan.rank(rank).rows)) {
      text.append(" ").append(std::to_string(row.token));
    }
  }
  text.append(" (rank ").append(std::to_string(context_.rank())).append(")");
  return {Code::unavailable, Scope::operation, std::move(text), first_peer};
}

Result<bool> AttentionEnd::issued(std::uint64_t number) {
  Operation* operation = find(number);
  if (operation == nullptr) return unknown("issued", number, context_.rank());
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    if (operation->peers[rank].touched && !links_[rank]->issued(operation->peers[rank].round))
      return false;
  }
  return true;
}

// Pushed rows were copied by the time dispatch returned.
Result<bool> AttentionEnd::input_free(std::uint64_t number) {
  const Operation* operation = find(number);
  if (operation == nullptr) return unknown("input_free", number, context_.rank());
  return rows_read(*operation);
}

void AttentionEnd::abandon(std::uint64_t number) noexcept {
  Operation* operation = find(number);
  if (operation == nullptr) return;
  operation->state = OperationState::abandoned;
  ++statistics_.abandoned;
}

void AttentionEnd::reap() {
  for (Operation& operation : operations_) {
    if (operation.state != OperationState::abandoned) continue;
    bool done = true;
    for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
      const Peer& peer = operation.peers[rank];
      done &= !peer.touched || links_[rank]->complete(peer.round) || !links_[rank]->health() ||
              peer_closed_[rank];
    }
    if (done) release(operation);
  }
}

bool AttentionEnd::has_open() const noexcept {
  return std::any_of(operations_.begin(), operations_.end(), [](const Operation& operation) {
    return operation.state == OperationState::open;
  });
}

bool AttentionEnd::idle() const noexcept {
  return std::all_of(operations_.begin(), operations_.end(), [](const Operation& operation) {
    return operation.state == OperationState::free;
  });
}

}  // namespace m2n::collectives
