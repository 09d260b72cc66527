// What the MPI variants share: the route plan, packing, and the arithmetic on what came. The same
// rows, information and sums as the library's. One rank's own.
#pragma once

#include <vector>

#include "perf/baseline/baseline.hpp"

namespace m2n::perf::mpi {

struct RowInfo {
  std::uint32_t token = 0;
  std::uint32_t first_entry = 0;
};
struct Entry {
  std::uint32_t local_expert = 0;
  float weight = 0;
};
// A message: Header, RowInfo[rows], Entry[entries], then, on the next multiple of 64, the rows.
struct Header {
  std::uint32_t rows = 0;
  std::uint32_t entries = 0;
  std::uint32_t whole_x = 0;  // all of x comes as a message of its own: row r is that of its token
  std::uint32_t unused = 0;
};

constexpr std::size_t info_bytes(std::uint32_t rows, std::uint32_t entries) noexcept {
  return (sizeof(Header) + rows * sizeof(RowInfo) + entries * sizeof(Entry) + 63) &
         ~std::size_t{63};
}

// Memory on a 64-byte boundary that has been touched.
class Room {
 public:
  explicit Room(std::size_t bytes);
  std::byte* data() const noexcept { return data_; }

 private:
  std::vector<std::byte> bytes_;
  std::byte* data_ = nullptr;
};

// Rows for one expert rank.
struct Lane {
  Header header;
  std::vector<RowInfo> info;
  std::vector<Entry> entries;
};

class Router {
 public:
  explicit Router(const BaselineShape& shape);
  void plan(const std::int32_t* ids, const float* weights);
  const Lane& lane(std::uint32_t expert_rank) const noexcept { return lanes_[expert_rank]; }
  // Row of a token at an expert rank, or -1.
  std::int32_t row(std::uint32_t token, std::uint32_t expert_rank) const noexcept {
    return rows_[std::size_t{token} * shape_.expert_ranks + expert_rank];
  }
  // (Almost) every token goes there: to send x as it is costs less than to pack.
  bool nearly_whole(std::uint32_t expert_rank) const noexcept {
    return std::uint64_t{lanes_[expert_rank].header.rows} * 16 >= std::uint64_t{shape_.tokens} * 15;
  }
  std::size_t write_info(std::uint32_t expert_rank, std::byte* to, bool whole_x) const;
  void pack_rows(std::uint32_t expert_rank, std::byte* to, const std::byte* x) const;

 private:
  const BaselineShape shape_;
  std::vector<Lane> lanes_;
  std::vector<std::int32_t> rows_;  // [tokens, expert ranks]
};

// A message as it came.
struct View {
  const Header* header = nullptr;
  const RowInfo* info = nullptr;
  const Entry* entries = nullptr;
  const std::byte* rows = nullptr;

  const std::byte* row(std::uint32_t r, std::size_t row_bytes) const noexcept {
    return rows + (header->whole_x != 0 ? info[r].token : r) * row_bytes;
  }
};
View view_of(const std::byte* message) noexcept;

// The expert rank's arithmetic: y = x, weighted and added per row.
class Reducer {
 public:
  explicit Reducer(const BaselineShape& shape);
  // Expert-major copy of all sources' rows, if the run asks for it.
  void group(const std::vector<View>& views);
  void reduce(std::uint32_t source, const View& view, std::uint32_t row, std::byte* to,
              bool streaming = false);
  void inspect(const std::vector<View>& views, const Inspector& inspector) const;

 private:
  const BaselineShape shape_;
  Room grouped_;
  std::vector<std::uint32_t> places_;              // next free row per local expert
  std::vector<std::vector<std::uint32_t>> where_;  // per source and entry: its grouped row
  std::vector<const void*> rows_;
  std::vector<float> weights_;
};

// Rows per MPI message side that no longer fit the caches are written around them.
bool beyond_caches(const BaselineShape& shape) noexcept;

// out[t] = sum of its partial rows, in expert-rank order.
void add_partials(const BaselineShape& shape, const Router& router, std::uint32_t token,
                  const std::vector<const std::byte*>& replies, std::byte* out);

}  // namespace m2n::perf::mpi
