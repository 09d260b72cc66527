// Starts the ranks when no launcher did: threads (inproc) or forked processes (shm).
#pragma once

#include <functional>

#include "m2n/status.hpp"
#include "perf/board.hpp"

namespace m2n::perf {

// Runs `rank_main(rank, board)` -> exit code on every rank; the worst code comes back. If a rank
// ends badly, the board says so to the others; those that do not listen are ended after a while.
int run_threads(std::uint32_t ranks, Board& board,
                const std::function<int(std::uint32_t, Board)>& rank_main);
int run_processes(std::uint32_t ranks, Board& board,
                  const std::function<int(std::uint32_t, Board)>& rank_main);

}  // namespace m2n::perf
