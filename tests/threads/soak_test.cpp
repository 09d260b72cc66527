// I-20: payload and flags of many rounds under the thread sanitizer, four ranks of each role as
// threads. Short here; the long dose is soak_long_test.
#include <gtest/gtest.h>

#include "tests/cases/scenario.hpp"
#include "tests/support/payload.hpp"

namespace m2n::testing {
namespace {

#ifdef M2N_TEST_LONG
constexpr int lives = 20;
constexpr std::uint32_t steps = 500;
#else
constexpr int lives = 1;
constexpr std::uint32_t steps = 60;
#endif

Scenario four_by_four(const char* transport) {
  Scenario scenario;
  scenario.ranks.attention = 4;
  scenario.ranks.experts = 4;
  scenario.ranks.transport = transport;
  scenario.ranks.guard = std::chrono::minutes{20};
  scenario.channel = usual_channel(16, 4, 128, 32);
  scenario.channel.placement = Placement::block(16, 4);
  scenario.steps = steps;
  scenario.in_flight = 2;
  const ChannelConfig config = scenario.channel;
  scenario.inputs = [config](std::uint32_t a, std::uint32_t step) {
    return standard_inputs(config, a, 32, step);
  };
  return scenario;
}

// The reference is what takes long: once for all lives of a channel.
void live(const Scenario& scenario) {
  const Expected expected = expect(scenario);
  for (int life = 0; life < lives && !::testing::Test::HasFailure(); ++life)
    run_ranks(scenario.ranks, [&](Rank& rank) { run_rank(scenario, expected, rank); });
}

TEST(I20, PushedRowsAndFlags) {
  live(four_by_four("inproc"));
  live(four_by_four("shm"));
}

TEST(I20, RowsOfTheArenaAndFlags) {
  Scenario scenario = four_by_four("inproc");
  scenario.channel.exchange = ExchangeKind::shared;
  scenario.form.arena = true;
  live(scenario);
}

TEST(I20, Aggregation) {
  Scenario scenario = four_by_four("inproc");
  scenario.channel.presence = Presence::touched;
  live(scenario);
}

}  // namespace
}  // namespace m2n::testing
