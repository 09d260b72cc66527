// The roof: how long plain copies of the same bytes take, in the same run, on the same cores.
#pragma once

#include "m2n/status.hpp"
#include "perf/board.hpp"
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

// All ranks call it; each does its own part and the slowest counts. `works` holds the workload of
// every attention rank at an expert rank, and its own at an attention rank.
Result<Roof> measure_roof(const Setup& setup, Board& board, std::uint32_t rank,
                          const std::vector<const Workload*>& works);

}  // namespace m2n::perf
