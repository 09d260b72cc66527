// Percentiles of measured times. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace m2n::perf {

// Value at fraction q of the sorted samples (nearest rank), or nothing when there are none.
std::optional<double> percentile(std::vector<double> samples, double q);

struct Spread {
  double min = 0, mean = 0, max = 0;
};
std::optional<Spread> spread(const std::vector<double>& samples);

// Small virtual machines move between two states: cores that share a cache, and cores that do not.
// A latency up to this is `near`: 2.2 x the smallest seen in the run. A run that has seen 200 ns
// and more only has seen no near cores.
double near_limit_ns(double smallest_seen_ns) noexcept;

}  // namespace m2n::perf
