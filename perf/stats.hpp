// Percentiles of measured times, and the state of the cores. Pure functions.
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

// One-way flag latency between the cores, before and after a block.
struct Tag {
  std::optional<double> flag_before_ns, flag_after_ns;
};

enum class CoreState : std::uint8_t { near, far, mixed };
const char* name(CoreState state) noexcept;

// Virtual cores may share a cache now and not a second later. A latency up to this limit is `near`:
// 1.7 x the smallest that the run has seen. (In one state latencies differ by up to 1.3; cores that
// do not share a cache take at least twice as long.) A run that has seen nothing below 180 ns has
// seen no near cores; then the limit is 0.
double near_limit_ns(double smallest_seen_ns) noexcept;

// The state during a block; nothing if it changed on the way. Two latencies within 1.3 of each
// other are one state, that of their geometric mean. Without latencies (one core only) it is near.
std::optional<CoreState> state_of(const Tag& tag, double near_limit_ns) noexcept;

}  // namespace m2n::perf
