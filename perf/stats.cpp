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

const char* name(CoreState state) noexcept {
  return state == CoreState::near ? "near" : state == CoreState::far ? "far" : "mixed";
}

double near_limit_ns(double smallest_seen_ns) noexcept {
  constexpr double surely_far_ns = 180;
  constexpr double near_to_far = 1.7;
  return smallest_seen_ns < surely_far_ns ? near_to_far * smallest_seen_ns : 0;
}

std::optional<CoreState> state_of(const Tag& tag, double near_limit_ns) noexcept {
  constexpr double same_state = 1.3;
  if (!tag.flag_before_ns || !tag.flag_after_ns) return CoreState::near;
  const double low = std::min(*tag.flag_before_ns, *tag.flag_after_ns);
  const double high = std::max(*tag.flag_before_ns, *tag.flag_after_ns);
  if (high <= near_limit_ns) return CoreState::near;
  if (low > near_limit_ns) return CoreState::far;
  if (high > same_state * low) return {};
  return std::sqrt(low * high) <= near_limit_ns ? CoreState::near : CoreState::far;
}

}  // namespace m2n::perf
