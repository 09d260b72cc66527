// Random configurations against the reference, bit for bit. A failure prints its seed; the runs
// differ with --gtest_shuffle --gtest_random_seed=S.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "collectives/hooks.hpp"
#include "tests/cases/random_config.hpp"
#include "transport/row_kernels.hpp"

namespace m2n::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t runs = 300;
constexpr std::chrono::seconds budget{20};

// Every set of kernels this CPU has, with plain and with streaming stores.
class Path {
 public:
  explicit Path(std::uint64_t seed) {
    const auto sets = transport::all_row_kernels();
    transport::test_row_kernels = &sets[seed % sets.size()];
    collectives::test_streaming = seed / sets.size() % 2 != 0;
  }
  ~Path() {
    transport::test_row_kernels = nullptr;
    collectives::test_streaming = false;
  }
};

TEST(Property, AnyConfigurationEqualsTheReference) {
  const auto base =
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) * runs;
  const Clock::time_point end = Clock::now() + budget;
  std::uint64_t done = 0;
  for (; done < runs && Clock::now() < end; ++done) {
    const Scenario scenario = random_scenario(base + done);
    const Path path{base + done};
    SCOPED_TRACE("seed " + std::to_string(base + done) + ": " + describe(scenario));
    run(scenario);
    if (HasFailure()) return;
  }
  std::cout << done << " configurations\n";
  EXPECT_GE(done, 20u) << "too slow to mean anything";
}

}  // namespace
}  // namespace m2n::testing
