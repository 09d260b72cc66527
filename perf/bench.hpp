// The measurement of one size: library and baselines in turns, in blocks, each block tagged with
// the flag latency before and after it. Every rank runs it; rank 0 gets the samples.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "m2n/group.hpp"
#include "perf/board.hpp"
#include "perf/engine.hpp"
#include "perf/machine.hpp"
#include "perf/roof.hpp"
#include "perf/stats.hpp"

namespace m2n::perf {

// Times of the timed operations of one block, in us, each the maximum over ranks.
struct Block : Tag {
  std::vector<double> dispatch, combine, roundtrip, produce;
  std::vector<std::vector<double>> by_rank;  // [attention ranks]: round trips
};

struct EngineRun {
  std::string name;
  bool shared_memory = false;  // a baseline by hand-written shared memory, not by messages
  std::vector<Block> blocks;
};

struct SizeRun {
  std::uint32_t tokens = 0;
  std::vector<RoofBlock> roofs;
  std::vector<EngineRun> engines;            // the library's first
  double rows = 0, entries = 0;              // of one operation, all ranks, mean
  double wire_bytes = 0, logical_bytes = 0;  // of one operation's dispatches
  double stolen = 0;                         // share of the machine's time
  std::uint64_t wrong = 0;
  std::string wrong_engine;
};

// What a rank brings along.
struct Runner {
  const Setup* setup = nullptr;
  Board* board = nullptr;
  FlagProbe* probe = nullptr;
  Group* group = nullptr;
  const class BaselineLibrary* baseline = nullptr;
  std::uint32_t rank = 0;
  bool oversubscribed = false;
  bool show_progress = false;
  // Tells why, and ends this rank and all others where a launcher's MPI would wait for all of them.
  std::function<void(const Status&)> give_up;
};

// A wrong row ends the measurement; it is no error Status (see SizeRun::wrong, equal on all ranks).
Result<SizeRun> run_size(const Runner& runner, std::uint32_t tokens);

}  // namespace m2n::perf
