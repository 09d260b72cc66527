// What one rank sends, and what must come out: rows of x, routings, and the data check. One rank's
// own; its thread uses it. The check computes with its own scalar code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "perf/setup.hpp"

namespace m2n::perf {

// Page-aligned memory, touched at once unless most of it will never be used.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes, bool touched = true);
  std::byte* data() const noexcept { return block_.get(); }
  std::size_t size() const noexcept { return bytes_; }

 private:
  std::shared_ptr<std::byte> block_;
  std::size_t bytes_ = 0;
};

// Rows of one attention rank's operation that go to one expert rank, in token order.
struct PairPlan {
  std::vector<std::uint32_t> tokens;       // of row r
  std::vector<std::uint32_t> first_entry;  // [rows + 1]
  std::vector<std::uint32_t> local_expert;
  std::vector<float> weight;
};

// A token's rows: entry c of token t lies at [first[t] + c].
struct Plan {
  std::vector<PairPlan> to;          // [expert ranks]
  std::vector<std::uint32_t> first;  // [tokens + 1]
  std::vector<std::uint32_t> rank;
  std::vector<std::uint32_t> row;

  // One row per (token, expert rank). Reuses the memory of earlier calls. Replicas and parts are
  // counted once each (first replica).
  void make(const Setup& setup, const Choices& choices, std::uint32_t tokens);
  std::size_t rows() const noexcept { return rank.size(); }
  std::size_t entries() const noexcept;
};

// Which row of x this is.
struct RowName {
  std::uint32_t attention = 0;
  std::uint32_t token = 0;
  std::uint64_t operation = 0;
};

// True if a payload row is the one of that name, byte for byte.
bool same_row(const Setup& setup, const RowName& name, const std::byte* row);

class Workload {
 public:
  // `attention` is the attention rank whose data this is, also when an expert rank asks.
  Workload(const Setup& setup, std::uint32_t attention, std::uint32_t tokens);

  std::uint32_t tokens() const noexcept { return tokens_; }
  const Choices& choices(std::uint64_t operation) const noexcept {
    return choices_[operation % choices_.size()];
  }
  std::uint32_t period() const noexcept { return static_cast<std::uint32_t>(choices_.size()); }
  // Writes x of an operation.
  void produce(std::byte* x, std::size_t stride_bytes, std::uint64_t operation) const;
  // Rows of `out` that differ from what the combine must give.
  std::uint64_t wrong_rows(const std::byte* out, std::uint64_t operation) const;

 private:
  static constexpr std::uint32_t period_elements = 64;
  std::uint32_t x_bits(std::uint32_t token, std::uint64_t operation, std::uint32_t column) const;
  void expect(std::uint32_t token, std::uint64_t operation,
              std::array<std::uint32_t, period_elements>& bits) const;

  const Setup& setup_;
  std::uint32_t attention_;
  std::uint32_t tokens_;
  std::vector<Choices> choices_;
};

// y rows for payloads of one byte, which cannot be their own y: kinds() rows of the wire type.
class ByteOutputs {
 public:
  static constexpr std::uint32_t kinds = 8;
  explicit ByteOutputs(const Setup& setup);
  const std::byte* base() const noexcept { return rows_.data(); }
  static std::uint32_t kind(const std::byte* payload_row) noexcept {
    return std::to_integer<std::uint32_t>(payload_row[0]) % kinds;
  }

 private:
  Buffer rows_;
};

}  // namespace m2n::perf
