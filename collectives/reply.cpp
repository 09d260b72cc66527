// reply: an expert rank's part of the sums, written into the slots that the sources wait on.
#include <string>

#include "collectives/expert_end.hpp"
#include "collectives/hooks.hpp"
#include "collectives/row_check.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {
namespace {

// A reader may start on a reply before it is complete; this is how often it hears of more.
constexpr std::uint32_t piece_rows = 4;

}  // namespace

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
    if (batch.sources[s].pairs.empty()) continue;
    if (Status status = check_outputs(per_source[s], s); !status) return status;
  }
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.wire);
  for (std::size_t s = 0; s < per_source.size(); ++s) {
    const Outputs& outputs = per_source[s];
    const std::size_t stride = outputs.row_stride_bytes != 0 ? outputs.row_stride_bytes : row_bytes;
    reply_source(
        {&batch.sources[s], static_cast<const std::byte*>(outputs.base), stride, outputs.index},
        batch.rounds[s]);
  }
  release(batch);
  return {};
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
  const std::size_t row_bytes = context_.config.hidden * size_of(context_.config.wire);
  const std::size_t stride = outputs.row_stride_bytes != 0 ? outputs.row_stride_bytes : row_bytes;
  for (std::size_t s = 0; s < batch.sources.size(); ++s) {
    const BatchSource& source = batch.sources[s];
    reply_source({&source, static_cast<const std::byte*>(outputs.base), stride,
                  batch.position[source.attention_rank].data()},
                 batch.rounds[s]);
  }
  release(batch);
  return {};
}

std::byte* ExpertEnd::begin_reply(const BatchSource& source, std::uint64_t round,
                                  std::uint32_t rows, ReplyStatus status) {
  PairLink& link = *links_[source.attention_rank];
  std::byte* slot = link.begin(round);
  if (slot == nullptr) {  // the last put has arrived; its completion is nearly here
    const Deadline deadline{{}, context_.group->step_timeout};
    while (slot == nullptr && link.health() && !deadline.passed(Clock::now()))
      slot = link.begin(round);
  }
  if (slot == nullptr) return nullptr;
  auto& header = *reinterpret_cast<SlotHeader*>(slot);
  header.operation = source.operation;
  header.layer = source.layer;
  header.micro_batch = source.micro_batch;
  header.placement_version = context_.config.placement.version();
  header.placement_hash = static_cast<std::uint16_t>(context_.config.placement.hash());
  header.status = status;
  header.flags = 0;
  header.rows = rows;
  header.entries = 0;
  header.body_offset = link.place(round, rows * link.out().row_bytes);
  return slot + header.body_offset;
}

void ExpertEnd::reply_source(const ReplyRows& rows, std::uint64_t round) {
  PairLink& link = *links_[rows.source->attention_rank];
  const bool reduced = context_.config.combine == Combine::reduced;
  const auto count =
      reduced ? rows.source->rows : static_cast<std::uint32_t>(rows.source->pairs.size());
  at({HookPoint::pre_combine_send, context_.group->config.world_rank, rows.source->attention_rank,
      round});
  std::byte* to = begin_reply(*rows.source, round, count, ReplyStatus::ok);
  if (to == nullptr) return;
  if (reduced) {
    write_reduced(rows, link, round, to);
  } else {
    write_per_expert(rows, link, round, to);
  }
  const std::size_t body = count * link.out().row_bytes;
  link.finish(round, body);
  statistics_.wire_bytes += sizeof(SlotHeader) + body;
}

// Per row: acc = +0; acc = fma(w, y, acc) over its entries in (k, part) order; rounded once.
void ExpertEnd::write_reduced(const ReplyRows& rows, PairLink& link, std::uint64_t round,
                              std::byte* to) {
  const BatchSource& source = *rows.source;
  const bool library = context_.config.weights == Weights::library;
  transport::SumRow sum;
  sum.rows = row_pointers_.data();
  sum.weights = row_weights_.data();
  sum.columns = context_.config.hidden;
  std::uint32_t pair = 0;
  for (std::uint32_t row = 0; row < source.rows; ++row) {
    const std::uint32_t begin = source.row[row].first_entry;
    sum.count = 0;
    for (std::uint32_t i = begin; i < source.row[row + 1].first_entry; ++i) {
      const Entry& entry = source.entries[i];
      std::uint32_t of = pair;
      if (entry.repeated()) {
        std::uint32_t first = begin;
        while (source.entries[first].expert_bits != entry.local_expert()) ++first;
        of = row_pairs_[first - begin];
      } else {
        ++pair;
      }
      row_pairs_[i - begin] = of;
      // The caller's own weights: y holds them, all of this expert's at once.
      if (library ? entry.weight == 0.0f : entry.repeated()) continue;
      row_pointers_[sum.count] =
          rows.base + std::size_t{rows.index != nullptr ? rows.index[of] : of} * rows.stride_bytes;
      row_weights_[sum.count++] = library ? entry.weight : 1.0f;
    }
    sum.out = to + row * link.out().row_bytes;
    sum_(sum);
    if ((row + 1) % piece_rows == 0) link.fill(round, row + 1);
  }
}

void ExpertEnd::write_per_expert(const ReplyRows& rows, PairLink& link, std::uint64_t round,
                                 std::byte* to) {
  const transport::CopyFunction copy = transport::row_kernels().copy;
  const std::size_t bytes = context_.config.hidden * size_of(context_.config.wire);
  const auto count = static_cast<std::uint32_t>(rows.source->pairs.size());
  for (std::uint32_t pair = 0; pair < count; ++pair) {
    const std::size_t from = rows.index != nullptr ? rows.index[pair] : pair;
    copy(to + pair * link.out().row_bytes, rows.base + from * rows.stride_bytes, bytes);
    if ((pair + 1) % piece_rows == 0) link.fill(round, pair + 1);
  }
}

void ExpertEnd::refuse_source(const BatchSource& source, std::uint64_t round, ReplyStatus status) {
  if (begin_reply(source, round, 0, status) != nullptr)
    links_[source.attention_rank]->finish(round, 0);
}

void ExpertEnd::abandon(BatchState& batch) noexcept {
  for (std::size_t s = 0; s < batch.sources.size(); ++s) {
    refuse_source(batch.sources[s], batch.rounds[s], ReplyStatus::unserved);
  }
  ++statistics_.abandoned;
  release(batch);
}

void ExpertEnd::release(BatchState& batch) noexcept {
  batch.in_use = false;
  batch.sources.clear();
  batch.rounds.clear();
}

}  // namespace m2n::collectives
