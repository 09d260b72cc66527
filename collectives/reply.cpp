// reply: an expert rank's part of the sums, written into the slots that the sources wait on.
#include <sched.h>

#include <algorithm>
#include <string>

#include "collectives/expert_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/row_check.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

Status ExpertEnd::check_outputs(const Outputs& outputs, std::size_t source) const {
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.wire);
  // Through an index rows may overlap or repeat.
  const ConstRows rows{outputs.base, outputs.index != nullptr ? 0 : outputs.row_stride_bytes};
  if (rows_fit(rows, row_bytes)) return {};
  return explain_rows(rows, row_bytes,
                      {"reply", "outputs[" + std::to_string(source) + "]",
                       "ChannelConfig::hidden and wire", context_.rank()});
}

Status ExpertEnd::reply(BatchState& batch, std::span<const Outputs> per_source) {
  if (per_source.size() != batch.sources.size()) {
    return transport::refuse({"reply", "outputs", std::to_string(per_source.size()) + " sources",
                              std::to_string(batch.sources.size()), context_.rank(),
                              "Batch::sources"});
  }
  for (std::size_t s = 0; s < per_source.size(); ++s) {
    if (batch.replies[s].done) continue;
    if (Status status = check_ready(batch, s, batch.sources[s].rows, "reply"); !status)
      return status;
    if (batch.sources[s].pairs.empty()) continue;
    if (Status status = check_outputs(per_source[s], s); !status) return status;
  }
  Status failed;
  for (std::size_t i = 0; i < per_source.size(); ++i) {
    const std::size_t s = (expert_rank_ + i) % per_source.size();  // not everybody to rank 0 first
    const BatchSource& source = batch.sources[s];
    if (Status sent = reply_source(batch, s, rows_of(source, per_source[s]), source.rows); !sent)
      failed = std::move(sent);
  }
  release(batch);
  return failed;
}

ExpertEnd::ReplyRows ExpertEnd::rows_of(const BatchSource& source,
                                        const Outputs& outputs) const noexcept {
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.wire);
  const std::size_t stride = outputs.row_stride_bytes != 0 ? outputs.row_stride_bytes : row_bytes;
  return {&source, static_cast<const std::byte*>(outputs.base), stride, outputs.index};
}

Status ExpertEnd::reply_grouped(BatchState& batch, const Outputs& outputs) {
  if (!batch.is_grouped || outputs.index != nullptr) {
    return transport::refuse(
        {"reply", "outputs", batch.is_grouped ? "an index" : "one array for a batch of rows",
         batch.is_grouped ? "none (the batch's own geometry)" : "one per source", context_.rank(),
         "ChannelConfig::layout"});
  }
  if (batch.grouped.rows != 0) {
    if (Status status = check_outputs(outputs, 0); !status) return status;
  }
  Status failed;
  for (std::size_t i = 0; i < batch.sources.size(); ++i) {
    const std::size_t s = (expert_rank_ + i) % batch.sources.size();
    const BatchSource& source = batch.sources[s];
    ReplyRows rows = rows_of(source, outputs);
    rows.index = position_[place_of(source.attention_rank, batch.rounds[s])].data();
    if (Status sent = reply_source(batch, s, rows, source.rows); !sent) failed = std::move(sent);
  }
  release(batch);
  return failed;
}

// The staging of an earlier reply, on transports that still read it: the peer has that reply, so
// the put's completion is nearly here.
Status ExpertEnd::wait_for_slot(ReplySlot& slot, std::byte*& base) {
  const PairLink& link = *slot.link;
  const Deadline deadline{{}, context_.group->step_timeout};
  for (base = slot.link->begin(slot.round); base == nullptr; base = slot.link->begin(slot.round)) {
    if (Status status = context_.check("reply"); !status) return status;
    if (Status status = check_link(link, "reply"); !status) return status;
    if (deadline.passed(Clock::now())) {
      blame(slot.peer);
      return timed_out("reply", slot.round, "attention");
    }
    worker_.check_peers();
    sched_yield();
  }
  return {};
}

// The header is written when the first rows are told of.
Status ExpertEnd::begin_reply(const BatchSource& source, ReplySlot& slot, ReplyStatus status) {
  PairLink& link = *slot.link;
  std::byte* base = nullptr;
  if (Status ready = wait_for_slot(slot, base); !ready) return ready;
  SlotHeader& header = slot.header;
  header.operation = source.operation;
  header.layer = source.layer;
  header.micro_batch = source.micro_batch;
  header.placement_version = context_.config.placement.version();
  header.placement_hash = static_cast<std::uint16_t>(context_.config.placement.hash());
  header.status = status;
  header.body_offset = link.place(slot.round, header.rows * link.out().row_bytes);
  slot.rows = base + header.body_offset;
  slot.row_lines = link.out().row_bytes / 64;
  slot.piece_lines = link.piece_lines(header.rows * slot.row_lines);
  slot.streaming = (link.header(slot.round).flags & flag::streaming) != 0;
  header.flags = slot.streaming ? flag::streaming : std::uint8_t{0};
  return {};
}

void ExpertEnd::finish_reply(ReplySlot& slot) {
  const std::size_t body = slot.header.rows * slot.link->out().row_bytes;
  if (slot.streaming) transport::row_kernels().fence_streaming();
  slot.link->write_header(slot.round, slot.header);
  slot.link->finish(slot.round, body);
  statistics_.reply_bytes += sizeof(SlotHeader) + body;
}

// Goes on with the reply to one source, up to row `until`; ends it with its last row.
Status ExpertEnd::reply_source(BatchState& batch, std::size_t s, const ReplyRows& rows,
                               std::uint32_t until) {
  const BatchSource& source = batch.sources[s];
  const bool reduced = context_.config.combine == Combine::reduced;
  ReplySlot& slot = batch.replies[s];
  if (slot.done) return {};
  if (!slot.begun) {
    slot.begun = true;
    slot.peer = source.attention_rank;
    slot.link = links_[slot.peer].get();
    slot.round = batch.rounds[s];
    slot.header.rows = reduced ? source.rows : static_cast<std::uint32_t>(source.pairs.size());
    at({HookPoint::pre_combine_send, context_.group->config.world_rank, slot.peer, slot.round});
    if (Status begun = begin_reply(source, slot, ReplyStatus::ok); !begun) {
      end_source(batch, s);
      return begun;
    }
  }
  if (reduced) {
    write_reduced(rows, slot, until);
  } else {
    write_per_expert(rows, slot, until);
  }
  if (until < source.rows) return {};
  finish_reply(slot);
  end_source(batch, s);
  return {};
}

void ExpertEnd::end_source(BatchState& batch, std::size_t s) noexcept {
  batch.replies[s].done = true;
  ++batch.answered;
  held_[place_of(batch.sources[s].attention_rank, batch.rounds[s])] = false;
}

// Columns of one row to write before the reader is told: all that are left, or a piece of a large
// row.
std::size_t ExpertEnd::piece_columns(const ReplySlot& slot, std::size_t column) const noexcept {
  const std::size_t left = context_.config.hidden - column;
  if (slot.piece_lines * 2 > slot.row_lines) return left;
  return std::min(left, slot.piece_lines * 64 / size_of(context_.config.wire));
}

// The reader may take what is complete while the next rows are being written.
void ExpertEnd::tell(ReplySlot& slot, std::size_t lines) {
  if (lines - slot.told_lines < slot.piece_lines || lines == slot.header.rows * slot.row_lines)
    return;
  slot.told_lines = lines;
  if (slot.streaming) transport::row_kernels().fence_streaming();
  slot.link->write_header(slot.round, slot.header);
  slot.link->tell(slot.round, static_cast<std::uint32_t>(lines));
}

// Per row: acc = +0; acc = fma(w, y, acc) over its entries in (k, part) order; rounded once.
void ExpertEnd::write_reduced(const ReplyRows& rows, ReplySlot& slot, std::uint32_t until) {
  const std::size_t wire_bytes = size_of(context_.config.wire);
  transport::SumRow sum;
  sum.rows = row_pointers_.data();
  sum.weights = row_weights_.data();
  sum.streaming = slot.streaming;
  for (; slot.next_row < until; ++slot.next_row) {
    const std::uint32_t row = slot.next_row;
    sum.count = collect_row(rows, row, slot.next_pair);
    std::byte* to = slot.rows + row * slot.link->out().row_bytes;
    for (std::size_t column = 0; column < context_.config.hidden; column += sum.columns) {
      sum.columns = piece_columns(slot, column);
      sum.out = to + column * wire_bytes;
      sum_(sum);
      const std::size_t done = column + sum.columns;
      tell(slot, done == context_.config.hidden ? (row + 1) * slot.row_lines
                                                : row * slot.row_lines + done * wire_bytes / 64);
      for (std::uint32_t i = 0; i < sum.count; ++i)
        row_pointers_[i] =
            static_cast<const std::byte*>(row_pointers_[i]) + sum.columns * wire_bytes;
    }
  }
}

// Lists the y rows and weights that make up one row; `pair` is the first pair of it, then of the
// next row.
std::uint32_t ExpertEnd::collect_row(const ReplyRows& rows, std::uint32_t row,
                                     std::uint32_t& pair) {
  const BatchSource& source = *rows.source;
  const bool library = context_.config.weights == Weights::library;
  const std::uint32_t begin = source.row[row].first_entry;
  // The slot was checked when it was received; the limits hold even if it changes under our hands.
  const std::size_t most = std::min(source.entries.size(), begin + row_pairs_.size());
  const std::size_t end = std::min<std::size_t>(source.row[row + 1].first_entry, most);
  std::uint32_t count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const Entry& entry = source.entries[i];
    std::uint32_t of = pair;
    if (entry.repeated()) {
      std::size_t first = begin;
      while (first < i && source.entries[first].expert_bits != entry.local_expert()) ++first;
      if (first == i) continue;
      of = row_pairs_[first - begin];
    } else {
      ++pair;
    }
    row_pairs_[i - begin] = of;
    if (of >= source.pairs.size()) continue;
    // The caller's own weights: y holds them, all of this expert's at once.
    if (library ? entry.weight == 0.0f : entry.repeated()) continue;
    row_pointers_[count] =
        rows.base + std::size_t{rows.index != nullptr ? rows.index[of] : of} * rows.stride_bytes;
    row_weights_[count++] = library ? entry.weight : 1.0f;
  }
  return count;
}

void ExpertEnd::write_per_expert(const ReplyRows& rows, ReplySlot& slot, std::uint32_t until) {
  const transport::RowKernels& kernels = transport::row_kernels();
  const transport::CopyFunction copy = slot.streaming ? kernels.copy_streaming : kernels.copy;
  const std::size_t bytes = context_.config.hidden * size_of(context_.config.wire);
  for (; slot.next_pair < slot.header.rows && rows.source->pairs[slot.next_pair].row < until;
       ++slot.next_pair) {
    const std::uint32_t pair = slot.next_pair;
    const std::size_t from = rows.index != nullptr ? rows.index[pair] : pair;
    copy(slot.rows + pair * slot.link->out().row_bytes, rows.base + from * rows.stride_bytes,
         bytes);
    tell(slot, (pair + 1) * slot.row_lines);
  }
}

void ExpertEnd::refuse_source(const BatchSource& source, std::uint64_t round, ReplyStatus status) {
  ReplySlot slot;
  slot.peer = source.attention_rank;
  slot.link = links_[slot.peer].get();
  slot.round = round;
  if (begin_reply(source, slot, status)) finish_reply(slot);
}

void ExpertEnd::abandon(BatchState& batch) noexcept {
  for (std::size_t s = 0; s < batch.sources.size(); ++s) {
    ReplySlot& open = batch.replies[s];
    if (open.done) continue;
    if (!open.begun) {
      refuse_source(batch.sources[s], batch.rounds[s], ReplyStatus::unserved);
    } else {  // the reader may have the header and some rows; the rest never comes
      open.header.status = ReplyStatus::unserved;
      open.link->change_status(open.round, ReplyStatus::unserved);
      finish_reply(open);
    }
    end_source(batch, s);
  }
  ++statistics_.abandoned;
  release(batch);
}

void ExpertEnd::release(BatchState& batch) noexcept {
  clear_groups(batch);
  batch.in_use = false;
  batch.sources.clear();
  batch.rounds.clear();
}

}  // namespace m2n::collectives
