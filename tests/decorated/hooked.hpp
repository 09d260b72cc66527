// Wraps every transport that is opened while it lives, and small runs to do under it. Used by a
// test's main thread, before and after its ranks.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "tests/cases/scenario.hpp"
#include "tests/support/decorators.hpp"
#include "tests/support/payload.hpp"
#include "transport/registry.hpp"

namespace m2n::testing {

class Hooked {
 public:
  explicit Hooked(transport::OpenHook hook) { transport::set_open_hook(std::move(hook)); }
  ~Hooked() { transport::set_open_hook({}); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
};

inline transport::OpenHook reordered(std::uint64_t seed) {
  return [seed](std::unique_ptr<transport::Transport> inner, const transport::Options& options) {
    return std::make_unique<ReorderTransport>(std::move(inner), seed * 100 + options.world_rank);
  };
}

inline transport::OpenHook counted(std::shared_ptr<Counts> counts) {
  return [counts](std::unique_ptr<transport::Transport> inner, const transport::Options&) {
    return std::make_unique<CountedTransport>(std::move(inner), counts);
  };
}

// All ranks share the plan: the k-th put is the k-th of any rank.
inline transport::OpenHook faulty(std::shared_ptr<Faults> faults) {
  return [faults](std::unique_ptr<transport::Transport> inner, const transport::Options&) {
    return std::make_unique<FaultyTransport>(std::move(inner), faults);
  };
}

inline Scenario small_scenario(std::uint32_t attention, std::uint32_t experts,
                               std::uint32_t steps) {
  Scenario scenario;
  scenario.ranks.attention = attention;
  scenario.ranks.experts = experts;
  scenario.channel = usual_channel(2 * experts + 1, std::min(2 * experts + 1, 3u), 24, 9);
  scenario.channel.placement = Placement::block(scenario.channel.experts, experts);
  scenario.steps = steps;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [config](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, (a * 5 + step * 3 + 4) % (config.max_tokens + 1), step);
  };
  return scenario;
}

}  // namespace m2n::testing
