// Random configurations against the reference, bit for bit. A failure prints its seed; the runs
// differ with --gtest_shuffle --gtest_random_seed=S.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "tests/cases/random_config.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t runs = 300;
constexpr std::chrono::seconds budget{20};

TEST(Property, AnyConfigurationEqualsTheReference) {
  const auto base =
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) * runs;
  const Clock::time_point end = Clock::now() + budget;
  std::uint64_t done = 0;
  for (; done < runs && Clock::now() < end; ++done) {
    const Scenario scenario = random_scenario(base + done);
    SCOPED_TRACE("seed " + std::to_string(base + done) + ": " + describe(scenario));
    run(scenario);
    if (HasFailure()) return;
  }
  std::cout << done << " configurations\n";
  EXPECT_GE(done, 20u) << "too slow to mean anything";
}

}  // namespace
}  // namespace m2n::testing
