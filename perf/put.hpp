// --op put: the transport alone, between rank 0 and the first expert rank. This file's source is
// the only one of the tool that sees the transport seam.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "m2n/status.hpp"
#include "m2n/store.hpp"
#include "perf/board.hpp"
#include "perf/machine.hpp"
#include "perf/setup.hpp"

namespace m2n::perf {

struct PutLine {
  std::string transport;
  std::size_t bytes = 0;
  double put_gbps = 0;
  double pingpong_p50_us = 0;
  double pingpong_p99_us = 0;
  std::optional<double> flag_ns;
  std::uint64_t wrong = 0;  // bytes
};

std::string to_json(const PutLine& line);
std::string put_table_head();
std::string table_row(const PutLine& line);

// All ranks call it; two of them work. One line per size of --tokens (rows of the dispatch type).
Result<std::vector<PutLine>> run_put(const Setup& setup, Board& board, FlagProbe& probe,
                                     std::shared_ptr<Store> store, std::uint32_t rank);

}  // namespace m2n::perf
