// Percentiles and the near/far threshold.
#include "perf/stats.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace m2n::perf {

std::optional<double> percentile(std::vector<double> samples, double q) {
  if (samples.empty()) return {};
  const auto count = static_cast<double>(samples.size());
  const double rank = std::clamp(std::ceil(q * count), 1.0, count);
  const auto place = samples.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(samples.begin(), place, samples.end());
  return *place;
}

std::optional<Spread> spread(const std::vector<double>& samples) {
  if (samples.empty()) return {};
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  return Spread{*low, sum / static_cast<double>(samples.size()), *high};
}

double near_limit_ns(double smallest_seen_ns) noexcept {
  constexpr double surely_far_ns = 200;
  return smallest_seen_ns < surely_far_ns ? 2.2 * smallest_seen_ns : 0;
}

}  // namespace m2n::perf
