// The roof: how long plain copies of the same bytes take, in the same run, on the same cores, in
// the same core state: measured in blocks that take turns with those of the library.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "m2n/status.hpp"
#include "perf/board.hpp"
#include "perf/stats.hpp"
#include "perf/workload.hpp"

namespace m2n::perf {

struct Roof {
  double dispatch_us = 0;   // the wire bytes once, by the senders at the same time
  double group_us = 0;      // grouped layouts: the expert-major copy
  double expert_us = 0;     // (token, expert) rows read, one row per (token, rank) written
  double attention_us = 0;  // those read, one row per token written
  double dispatch() const noexcept { return dispatch_us + group_us; }
  double roundtrip() const noexcept { return dispatch() + expert_us + attention_us; }
};

// One block: the slowest rank's median of each stage, by each way to copy.
struct RoofBlock : Tag {
  static constexpr std::size_t stages = 4;  // dispatch, group, expert, attention
  static constexpr std::size_t ways = 3;    // ordinary stores, around the cache, string instruction
  std::array<std::array<double, ways>, stages> us{};
};

// Of each stage the best way, by its median over the blocks. Nothing without blocks.
std::optional<Roof> roof_of(const std::vector<const RoofBlock*>& blocks);

// One rank's part, with its memory. `works` holds the workload of every attention rank at an expert
// rank, and its own at an attention rank; it outlives this.
class RoofBench {
 public:
  RoofBench(const Setup& setup, std::uint32_t rank, std::vector<const Workload*> works);
  ~RoofBench();
  // All ranks together; the times are known at rank 0. The flags are the caller's.
  Status measure(Board& board, RoofBlock& block);

 private:
  class Part;
  const Setup& setup_;
  std::uint32_t rank_;
  std::vector<const Workload*> works_;
  std::unique_ptr<Part> part_;
};

}  // namespace m2n::perf
