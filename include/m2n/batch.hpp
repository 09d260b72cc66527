// What an expert rank gets from receive(): tokens of one operation (lockstep) or of what has come
// (aggregation), from one or many attention ranks. Views point into the windows of the channel and
// are dead after reply(), after the Batch is dropped, and after close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "m2n/export.hpp"
#include "m2n/types.hpp"

namespace m2n {

// One payload row's place in its source: which token it is, and where its entries begin.
struct RowInfo {
  std::uint32_t token = 0;        // index in the caller's batch at the source
  std::uint32_t first_entry = 0;  // entries of row i: [row[i].first_entry, row[i + 1].first_entry)
};

// One (token, k, part) that was routed to this rank, in (row, k, part) order.
struct Entry {
  static constexpr std::uint32_t repeat_bit = 0x8000'0000u;
  std::uint32_t expert_bits = 0;
  float weight = 0;
  std::uint32_t local_expert() const noexcept { return expert_bits & ~repeat_bit; }
  // The same expert was already chosen by this token: same y row, another weight.
  bool repeated() const noexcept { return (expert_bits & repeat_bit) != 0; }
};

// A distinct (row, local expert) of a source: what the expert function computes one y row for.
struct Pair {
  std::uint32_t row = 0;
  std::uint32_t local_expert = 0;
};

// The part of a batch that one attention rank sent.
struct BatchSource {
  std::uint32_t attention_rank = 0;
  std::uint64_t operation = 0;  // the sender's number of this operation
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t rows = 0;
  // Row i begins at base + (index ? index[i] : i) * row_stride_bytes. Its arrays (hidden, then the
  // extra ones) begin at the offsets of Channel::row_format().
  // Grouped batches of a shared exchange: use the grouped rows; these are the sender's again.
  const std::byte* base = nullptr;
  std::size_t row_stride_bytes = 0;
  const std::uint32_t* index = nullptr;
  std::span<const RowInfo> row;
  std::span<const Entry> entries;
  std::span<const Pair> pairs;

  const std::byte* payload(std::uint32_t i) const noexcept {
    return base + std::size_t{index != nullptr ? index[i] : i} * row_stride_bytes;
  }
};

// Expert-major view, for Layout::grouped and Layout::packed. Rows of local expert e are
// base + (first_row[e] + j) * row_stride_bytes for j in [0, counts[e]).
struct GroupedRows {
  std::byte* base = nullptr;
  std::size_t row_stride_bytes = 0;
  std::size_t rows = 0;  // rows of the whole area, padding included
  std::span<const std::uint32_t> counts;
  std::span<const std::size_t> first_row;
  // row -> (source index in the batch, row in it); -1 in `source_of` marks padding.
  std::span<const std::int32_t> source_of;
  std::span<const std::uint32_t> row_of;
};

struct BatchState;   // collectives/
struct ChannelImpl;  // collectives/

// Move-only. Dropping it answers its sources `unserved`. Used by the thread of its channel end.
class M2N_EXPORT Batch {
 public:
  Batch() noexcept = default;
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;
  ~Batch();

  explicit operator bool() const noexcept { return state_ != nullptr; }
  // Of the first source; in lockstep, and without across_layers, of all of them.
  std::uint32_t layer() const noexcept;
  std::uint32_t micro_batch() const noexcept;
  std::span<const BatchSource> sources() const noexcept;
  // How many of a source's rows may be read: all, unless the batch was received early.
  std::uint32_t rows_ready(std::size_t source) const noexcept;
  // Empty views for Layout::rows, and for a batch that overflowed its capacity.
  const GroupedRows& grouped() const noexcept;
  std::size_t total_rows() const noexcept;
  std::size_t total_pairs() const noexcept;

 private:
  friend struct ChannelImpl;
  Batch(std::shared_ptr<ChannelImpl> channel, BatchState* state) noexcept;
  std::shared_ptr<ChannelImpl> channel_;
  BatchState* state_ = nullptr;
};

}  // namespace m2n
