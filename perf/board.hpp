// A small block of memory that all ranks of a run share, apart from the library: barriers, flags,
// time stamps and a few numbers. Ranks are threads, forked processes, or processes of mpirun.
// Every rank has a Board of its own that maps the same block; one thread uses it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "perf/record.hpp"

namespace m2n::perf {

enum class Number : std::uint8_t {
  wrong,          // rows of a block that differ from what must be there
  roof_ns,        // of the roof stage that is measured
  wire_bytes,     // of all dispatches so far, by the library's own count
  logical_bytes,  // the same before de-duplication
  rows,           // (token, rank) rows of an operation, mean
  entries,        // (token, expert) rows of an operation, mean
  core,           // bound to; -1 = unbound
  count
};

class Board {
 public:
  static constexpr std::size_t max_records = 4096;  // operations of a block

  // For threads and forked processes: made before they start.
  static Result<Board> make(std::uint32_t ranks);
  // For processes of a launcher: rank 0 makes it, the others find it through the store.
  static Result<Board> meet(Store& store, std::uint32_t rank, std::uint32_t ranks);

  // The same block, for another thread or a forked child.
  Board view() const;

  // Waits for all ranks. `cancelled` if one has failed.
  Status barrier();
  void fail() noexcept;
  bool failed() const noexcept;

  std::uint32_t ranks() const noexcept { return ranks_; }
  std::span<Record> records(std::uint32_t rank) noexcept;
  double& number(std::uint32_t rank, Number which) noexcept;
  double max_number(Number which) noexcept;
  double sum_number(Number which) noexcept;
  // Written by rank 0, read by all after a barrier.
  std::uint64_t& decision() noexcept;
  std::atomic<std::uint32_t>& port() noexcept;
  std::atomic<std::uint32_t>& ping() noexcept;
  std::atomic<std::uint32_t>& pong() noexcept;

 private:
  struct Head;
  Board(std::shared_ptr<std::byte> block, std::uint32_t ranks);
  static std::size_t bytes_for(std::uint32_t ranks) noexcept;
  Head& head() const noexcept;

  std::shared_ptr<std::byte> block_;
  std::uint32_t ranks_ = 0;
  std::uint32_t turn_ = 0;  // barriers passed
};

}  // namespace m2n::perf
