// Grouped and packed layouts: rows are copied, expert after expert, when the batch closes.
#include <algorithm>
#include <string>

#include "collectives/expert_end.hpp"
#include "collectives/layout.hpp"
#include "transport/text.hpp"

namespace m2n::collectives {

Status ExpertEnd::group(BatchState& batch, const ReceivePolicy& policy) {
  if (Status status = place_groups(batch); !status) return status;
  const std::size_t stride = context_.row_format.stride_bytes;
  const std::size_t needed = batch.grouped.rows * stride;
  if (!policy.buffer.empty()) {
    if (policy.buffer.size() < needed) {
      return transport::refuse(
          {"receive", "policy.buffer", std::to_string(policy.buffer.size()) + " bytes",
           "at least " + std::to_string(needed), context_.rank(), "ReceivePolicy::buffer"},
          Code::exhausted);
    }
    batch.grouped.base = policy.buffer.data();
  } else {
    if (batch.memory == nullptr && needed != 0) {
      return {Code::system, Scope::operation,
              "receive: no address space for a grouped batch of " + std::to_string(grouped_bytes_) +
                  " bytes (rank " + std::to_string(context_.rank()) +
                  "; see ChannelConfig::capacity)"};
    }
    batch.grouped.base = batch.memory;
  }
  batch.grouped.row_stride_bytes = stride;
  copy_groups(batch);
  for (std::size_t s = 0; s < batch.sources.size(); ++s) {
    if (batch.sources[s].index != nullptr)
      links_[batch.sources[s].attention_rank]->say_gathered(batch.rounds[s]);
  }
  batch.is_grouped = true;
  return {};
}

// Counts, then decides where every local expert's rows begin.
Status ExpertEnd::place_groups(BatchState& batch) {
  const ChannelConfig& config = context_.config;
  std::fill(batch.counts.begin(), batch.counts.end(), 0);
  for (const BatchSource& source : batch.sources) {
    for (const Pair& pair : source.pairs) ++batch.counts[pair.local_expert];
  }
  const std::size_t capacity = local_experts_ == 0 ? 0 : grouped_rows_ / local_experts_;
  const std::size_t alignment = std::max(config.packed_alignment, 1u);
  std::size_t row = 0;
  for (std::uint32_t e = 0; e < local_experts_; ++e) {
    if (config.layout == Layout::grouped && batch.counts[e] > capacity) {
      return transport::refuse(
          {"receive", "rows of local expert " + std::to_string(e), std::to_string(batch.counts[e]),
           "at most " + std::to_string(capacity) + "; take the batch with ReceivePolicy::as_rows",
           context_.rank(), "ChannelConfig::capacity"},
          Code::exhausted);
    }
    batch.first_row[e] = batch.cursor[e] = row;
    row += config.layout == Layout::grouped
               ? capacity
               : (batch.counts[e] + alignment - 1) / alignment * alignment;
  }
  batch.grouped.rows = row;
  batch.grouped.counts = batch.counts;
  batch.grouped.first_row = batch.first_row;
  batch.grouped.source_of = {batch.source_of.data(), row};
  batch.grouped.row_of = {batch.row_of.data(), row};
  return {};
}

// Only the rows that were used are marked as padding again: an area may be far larger than its
// batch.
void ExpertEnd::clear_groups(BatchState& batch) noexcept {
  if (!batch.is_grouped) return;
  for (std::uint32_t e = 0; e < local_experts_; ++e) {
    std::fill_n(batch.source_of.begin() + static_cast<std::ptrdiff_t>(batch.first_row[e]),
                batch.counts[e], -1);
  }
  batch.is_grouped = false;
}

void ExpertEnd::copy_groups(BatchState& batch) {
  const transport::CopyFunction copy = transport::row_kernels().copy;
  const std::size_t stride = batch.grouped.row_stride_bytes;
  for (std::size_t s = 0; s < batch.sources.size(); ++s) {
    const BatchSource& source = batch.sources[s];
    std::vector<std::uint32_t>& position =
        position_[place_of(source.attention_rank, batch.rounds[s])];
    for (std::size_t i = 0; i < source.pairs.size(); ++i) {
      const Pair& pair = source.pairs[i];
      const std::size_t row = batch.cursor[pair.local_expert]++;
      copy(batch.grouped.base + row * stride, source.payload(pair.row), stride);
      position[i] = static_cast<std::uint32_t>(row);
      batch.source_of[row] = static_cast<std::int32_t>(s);
      batch.row_of[row] = pair.row;
    }
  }
}

}  // namespace m2n::collectives
