// From samples to lines: one per size and core state, as a table for people and as JSON.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perf/bench.hpp"

namespace m2n::perf {

// A baseline's way to do it, in the state of the line.
struct BaselineTime {
  std::string name;
  bool shared_memory = false;
  std::optional<double> dispatch_p50_us, combine_p50_us, roundtrip_p50_us;
};

// One line. Empty = not measured.
struct Line {
  std::string op, transport, routing, dtype;
  std::uint32_t m = 0, n = 0, experts = 0, top_k = 0, hidden = 0, tokens = 0, pieces = 1;
  bool oversubscribed = false, noisy = false, checked = true;
  CoreState state = CoreState::near;
  std::optional<double> flag_ns;
  std::size_t blocks = 0, dropped_blocks = 0;
  double wire_bytes = 0, logical_bytes = 0;
  std::optional<double> dispatch_p50_us, dispatch_p99_us, combine_p50_us, combine_p99_us;
  std::optional<double> roundtrip_p50_us, roundtrip_p90_us, roundtrip_p99_us;
  std::optional<double> rank_min_us, rank_avg_us, rank_max_us, produce_us;
  std::optional<double> algbw_gbps, busbw_gbps, roof_us, roof_fraction, dispatch_roof_fraction;
  std::optional<std::uint64_t> wrong;
  std::optional<std::string> baseline;
  std::optional<double> baseline_dispatch_p50_us, baseline_combine_p50_us;
  std::optional<double> baseline_roundtrip_p50_us, speedup_p50;
  std::vector<BaselineTime> baselines;  // all ways, as they were run
};

// What holds for the whole run.
struct RunFacts {
  std::string transport;
  std::string baseline;  // name of the MPI, or empty
  bool bound = true;
  bool oversubscribed = false;
  double smallest_flag_ns = 1e18;  // seen so far, by any block
};

// Lines of a size, best known state first; blocks whose state changed are left out and counted.
std::vector<Line> summarise(const Setup& setup, RunFacts& facts, const SizeRun& run);

std::string to_json(const Line& line);
std::string table_head(const Setup& setup);
std::string table_row(const Setup& setup, const Line& line);

}  // namespace m2n::perf
